"""The command starts without TensorFlow; every other program gets the op library."""

import subprocess
import sys


def python(*args, cwd):
    """Runs Python in a folder without the package: the installed one is used."""
    return subprocess.run(
        [sys.executable, *args], cwd=cwd, capture_output=True, text=True, check=True
    ).stdout


def test_the_package_runs_as_a_module(tmp_path):
    for option in ("-m", "-Im"):
        assert python(option, "tf_syncrep", "--help", cwd=tmp_path).startswith(
            "usage: tf-syncrep "
        )


def test_the_command_does_not_import_tensorflow(tmp_path):
    program = (
        "import sys; sys.argv = ['bin/tf-syncrep', '--help']\n"
        "from tf_syncrep.python import cli\n"
        "from tf_syncrep.python.distribute import launcher, server\n"
        "print('tensorflow' in sys.modules)\n"
    )
    assert python("-c", program, cwd=tmp_path) == "False\n"


def test_a_module_of_a_package_that_imports_tf_syncrep_has_the_op_library(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import tf_syncrep")
    (package / "train.py").write_text("import sys; print('tensorflow' in sys.modules)")
    assert python("-m", "package.train", cwd=tmp_path) == "True\n"
