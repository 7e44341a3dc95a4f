"""The code of the guides runs, and the code of all pages uses existing names.

The Python blocks of a guide are one program, from the page's top to its end. Blocks
whose first line names a file and a command (`# train.py: tf-syncrep launch`) are that
file instead. A block after `<!-- not run -->` belongs to another library.
"""

import functools
import pathlib
import re
import shlex
import sys

import commands
import markdown_code
import public_calls
import pytest

GUIDES = sorted((markdown_code.ROOT / "docs" / "guides").glob("*.md"))
PAGES = markdown_code.pages()


def name(page: pathlib.Path) -> str:
    return str(page.relative_to(markdown_code.ROOT))


def python_blocks(page):
    return [b for b in markdown_code.blocks(page) if b.language == "python"]


def runs(page):
    return [b for b in python_blocks(page) if b.is_run]


def with_programs(pages):
    return [p for p in pages if any(not b.script for b in runs(p))]


@pytest.mark.docs
@pytest.mark.one_version
@pytest.mark.parametrize("page", with_programs(GUIDES), ids=name)
def test_guides_program_runs_from_top_to_end(page, tmp_path):
    program = tmp_path / page.with_suffix(".py").name
    parts = [block for block in runs(page) if not block.script]
    program.write_text(markdown_code.as_program(parts))
    run(program)


@pytest.mark.docs
@pytest.mark.one_version
@pytest.mark.parametrize(
    "page", [p for p in GUIDES if any(b.script for b in runs(p))], ids=name
)
def test_guides_scripts_run_as_their_first_lines_say(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in runs(page):
        if not block.script:
            continue
        file, command = block.script
        (tmp_path / file).write_text(block.code)
        words = shlex.split(command)
        assert words[-1] == file
        if words[0] == "python":
            run(tmp_path / file)
        else:
            assert words[0] == "tf-syncrep"
            result = commands.run(*words[1:], cwd=tmp_path)
            assert result.process.returncode == 0, result.output


def run(program):
    result = commands.run(
        program,
        program=[sys.executable],
        cwd=program.parent,
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert result.process.returncode == 0, result.output[-5000:]


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=name)
def test_code_of_a_page_calls_what_there_is(page):
    for block in python_blocks(page):
        code = "\n" * (block.line - 1) + block.code
        assert public_calls.wrong_calls(code, name(page)) == []


def test_names_on_pages_are_public_ones():
    """Also in prose: every page that uses a name is found when the name has changed."""
    wrong = []
    for page in PAGES:
        for dotted in set(re.findall(r"\btfs(?:\.[A-Za-z_]\w*)+", page.read_text())):
            try:
                public_calls.look_up(dotted)
            except AttributeError:
                wrong.append(f"{name(page)}: {dotted}")
    assert wrong == []


@functools.cache
def options_of(subcommand: str) -> set[str]:
    result = commands.run(subcommand, "--help")
    assert result.process.returncode == 0, result.output
    return set(re.findall(r"--[a-z][a-z-]*", result.output))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_of_commands_on_a_page_are_there(page):
    found = re.findall(
        r"\btf-syncrep (launch|serve-model|serve|task|report|doctor)\b([^`\n]*)",
        page.read_text(),
    )
    for subcommand, rest in found:
        # Arguments after the script belong to the script.
        rest = re.split(r"\S+\.py\b| -m ", rest)[0]
        unknown = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", rest)) - options_of(
            subcommand
        )
        assert not unknown, f"tf-syncrep {subcommand} has no {sorted(unknown)}"
