"""The image's recipe; no image is built."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def _lines():
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    return [x for x in joined.splitlines() if x.strip() and not x.startswith("#")]


def test_what_is_copied_is_there():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = [source for words in copied for source in words.split()]
    assert sources
    assert [x for x in sources if not (ROOT / x).exists()] == []


def test_it_has_only_known_instructions_and_does_not_end_as_root():
    instructions = [line.split()[0] for line in _lines()]
    assert set(instructions) <= {
        *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM"),
        *("RUN", "USER", "WORKDIR"),
    }
    assert "USER training" in _lines()


def test_the_entry_point_is_the_command_without_a_shell():
    """A shell in between would keep signals from the task."""
    words = [line.partition(" ") for line in _lines()]
    entry = {key: json.loads(x) for key, _, x in words if key in ("ENTRYPOINT", "CMD")}
    assert entry["ENTRYPOINT"] == ["tf-syncrep", "task"]
    (script,) = entry["CMD"]
    assert (ROOT / script.removeprefix("/app/")).is_file()
