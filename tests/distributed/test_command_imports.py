"""The command starts without TensorFlow; every other program gets the op library."""

import subprocess
import sys

import commands
import pytest

import tf_syncrep as tfs


def python(*args, cwd):
    """Runs Python in a folder without the package: the installed one is used."""
    return subprocess.run(
        [sys.executable, *args], cwd=cwd, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("option", ["-m", "-Im"])
def test_the_package_runs_as_a_module(option, tmp_path):
    said = python(option, "tf_syncrep", "--help", cwd=tmp_path)
    assert said.startswith("usage: tf-syncrep ")


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["launch", "no_such.py"],
        ["serve"],
        ["serve-model", "pyproject.toml", "--name", "a/b"],
    ],
    ids=" ".join,
)
def test_help_and_errors_come_at_once_because_tensorflow_is_not_imported(args):
    # Python lists imports on standard error, with the module's name last.
    result = commands.run(*args, env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rpartition("|")[2].strip() for line in result.stderr}
    assert "tf_syncrep.python.cli" in imported
    assert not imported & {"numpy", "tensorflow"}
    if args == ["--version"]:
        assert result.stdout == [f"tf_syncrep {tfs.__version__}"]
        assert result.process.returncode == 0


def test_a_module_of_a_package_that_imports_tf_syncrep_has_the_op_library(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import tf_syncrep")
    (package / "train.py").write_text("import sys; print('tensorflow' in sys.modules)")
    assert python("-m", "package.train", cwd=tmp_path) == "True\n"
