"""What a task runs: the training script, if it exists, or this package."""

import importlib.util
import os
import sys
from collections.abc import Sequence

from tf_syncrep.python.distribute.errors import UsageError

# Which tasks run the script; the others run `tf-syncrep serve`.
SCRIPT_JOBS = {
    "coordinator": ("chief",),
    "workers": ("chief", "worker"),
    "all": ("chief", "worker", "ps"),
}


def computing_jobs(run_script_on: str) -> tuple[str, ...]:
    """Returns the jobs whose tasks compute: a chief does unless it coordinates."""
    return ("worker",) if run_script_on == "coordinator" else ("chief", "worker")


# Runs this very package in a child. The path of the parent's copy is last on the module
# path. The current folder, which `-c` puts first unless PYTHONSAFEPATH is set, is
# removed, since it may contain a folder with the package's name.
_RUN = """\
import sys
sys.path[:1] = filter(None, sys.path[:1])
sys.path.append({root!r})
sys.argv[0] = "tf-syncrep"
from tf_syncrep.python.{module} import main
sys.exit(main())
"""
_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def command(script: str, args: Sequence[str] = (), module: bool = False) -> list[str]:
    """Returns the command line that runs a script."""
    if module:
        return [sys.executable, "-m", script, *args]
    if not script.endswith(".py") and _is_executable_file(script):
        return [os.path.abspath(script), *args]
    return [sys.executable, script, *args]


def check(script: str, module: bool = False) -> None:
    """Raises UsageError if a script does not exist."""
    if module:
        if not _module_exists(script):
            raise UsageError(f"there is no module {script!r}")
    elif not os.path.exists(script):
        raise UsageError(f"the script {script!r} does not exist")
    elif os.path.isdir(script) and not os.path.exists(
        os.path.join(script, "__main__.py")
    ):
        raise UsageError(f"the folder {script!r} has no __main__.py")


def server_command(allow: str) -> list[str]:
    """Returns the command that serves a task with this interpreter and this package."""
    return own_command("cli", "serve", "--allow", allow)


def own_command(module: str, *args: str) -> list[str]:
    """Returns the command for `main` of a module with this interpreter and package."""
    root = os.path.dirname(_PACKAGE_DIRECTORY)
    return [sys.executable, "-c", _RUN.format(root=root, module=module), *args]


def _is_executable_file(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _module_exists(name: str) -> bool:
    """Returns whether `python -m` would find the module, or its outermost package."""
    sys.path.insert(0, os.getcwd())
    try:
        # A search within the outermost package would import it.
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
    finally:
        del sys.path[0]
