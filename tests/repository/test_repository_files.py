"""Files that say the same in two places agree: folders, workflows, linters."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tf_syncrep"
PACKAGES = sorted(path.parent for path in PACKAGE.rglob("python/**/__init__.py"))
MAKEFILE = (ROOT / "Makefile").read_text()


def _name(folder: pathlib.Path) -> str:
    return str(folder.relative_to(ROOT))


def _workflow(name: str) -> str:
    return (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()


def test_contributings_table_names_all_folders_of_the_package():
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| folder | holds |")[2]
    named = set(re.findall(r"`(tf_syncrep/[\w/]+)`", table.partition("\n\n")[0]))
    folders = {
        _name(path.parent)
        for side, pattern in (("cc", "*.h"), ("cc", "*.cc"), ("python", "*.py"))
        for path in (PACKAGE / side).rglob(pattern)
    } - {"tf_syncrep/python"}
    assert named == folders, "Name each folder, and none that is gone."


@pytest.mark.parametrize("package", PACKAGES, ids=_name)
def test_a_packages_docstring_names_only_modules_that_it_has(package):
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert docstring, "Say in a sentence what is in the package."
    if package.name == "compat":
        return  # its docstring is about names, not modules
    words = set(re.findall(r"`([a-z_0-9]+)`", docstring))
    has = {path.stem for path in package.iterdir()}
    assert words <= has, f"not in {_name(package)}: {sorted(words - has)}"


def test_make_help_names_each_target():
    phony = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    targets = {name for line in phony for name in line.replace("\\\n", "").split()}
    # Those of `make gpu` are its parts.
    wanted = {name for name in targets if not name.startswith("gpu-")} - {"help"}
    told = re.findall(r"^#   make (\S+) ", MAKEFILE.partition("\n\n")[0], re.MULTILINE)
    assert wanted == set(told), "Say in the first lines of the Makefile what it does."


def test_wheels_are_built_for_the_versions_of_make_wheels():
    (versions,) = re.findall(r"^TF_VERSIONS \?= (.*)$", MAKEFILE, re.MULTILINE)
    (matrix,) = re.findall(r"tensorflow: \[(.*)\]", _workflow("wheels"))
    assert matrix.split(", ") == versions.split()


def test_workflows_run_the_scripts_of_ci():
    assert "run: .ci/run\n" in _workflow("ci")
    assert "run: .ci/nightly\n" in _workflow("nightly")
