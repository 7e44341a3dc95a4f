"""The training script that a task runs: its command line, and whether it exists."""

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


def command(script: str, args: Sequence[str] = (), module: bool = False) -> list[str]:
    """Returns the command line that runs a script."""
    if module:
        return [sys.executable, "-m", script, *args]
    if not script.endswith(".py") and _is_executable_file(script):
        return [os.path.abspath(script), *args]
    return [sys.executable, script, *args]


def check(script: str, module: bool = False) -> None:
    """Checks that a script exists.

    Raises UsageError: the script does not exist.
    """
    if module:
        if not _module_exists(script):
            raise UsageError(f"there is no module {script!r}")
    elif not os.path.exists(script):
        raise UsageError(f"the script {script!r} does not exist")
    elif os.path.isdir(script) and not os.path.exists(
        os.path.join(script, "__main__.py")
    ):
        raise UsageError(f"the folder {script!r} has no __main__.py")


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
