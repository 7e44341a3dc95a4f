"""Training with parameter servers in TensorFlow 2.

Importing this package loads its op library into the process, which every process of a
cluster needs, even those that only serve variables. It also registers the package's
optimizers and layers with Keras, so that saved models that name them can be loaded. The
other Python modules behind the names below are imported when they are first used.

`import tf_syncrep.serving` alone does neither: what serves needs no op library, and may
have another TensorFlow.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import itertools
import os
import sys
from typing import TYPE_CHECKING


def _use_what_is_installed() -> None:
    """Makes this module the installed package, if its own folder has no op library.

    A script in a clone finds the clone's source tree first, but `pip install .` and
    `make` put the library beside a copy of it. Modules and library are from one place.
    """
    global __file__
    library = "libtf_syncrep.so"
    if os.path.exists(os.path.join(os.path.dirname(__file__), library)):
        return
    try:
        distribution = importlib.metadata.distribution(__name__)
    except importlib.metadata.PackageNotFoundError:
        return
    folder = str(distribution.locate_file(__name__))
    if os.path.exists(os.path.join(folder, library)):
        __path__[:] = [folder]
        __file__ = os.path.join(folder, "__init__.py")


_use_what_is_installed()

from tf_syncrep.python.ops.op_library import library_path, load  # noqa: E402
from tf_syncrep.python.version import VERSION as __version__  # noqa: E402

if TYPE_CHECKING:
    from tf_syncrep import data, distribute, keras, ops, serving, train
    from tf_syncrep.python.v1.v1_names import install_v1_names

__all__ = [
    "__version__",
    "data",
    "distribute",
    "install_v1_names",
    "keras",
    "library_path",
    "ops",
    "serving",
    "train",
]

# The reason why Keras could not be imported; it is raised where Keras is used.
_keras_error: Exception | None = None


def _imported_by_own_command() -> bool:
    """Returns whether this process is `tf-syncrep` or `python -m tf_syncrep`.

    The command must start even if the library does not load: `doctor` says why, and
    `launch` needs no TensorFlow in its own process.
    """
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # Python is still looking for the module to run
        return any(
            option.startswith("-") and option.endswith("m") and module == __name__
            for option, module in itertools.pairwise(sys.orig_argv)
        )
    return os.path.basename(program) == "tf-syncrep"


def _imported_for_serving() -> bool:
    """Returns whether this is imported on the way to its module `serving`.

    Python imports a package before its modules, and does not tell it for which. But the
    calls of the import system that wait for this module have the name.
    """
    frame = inspect.currentframe()
    while frame is not None and (
        frame.f_globals is globals()
        or frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        if frame.f_locals.get("name") == f"{__name__}.serving":
            return True
        frame = frame.f_back
    return False


def __getattr__(name: str):
    """Imports a public module or name at its first use."""
    if name == "serving":
        return importlib.import_module(f"{__name__}.serving")
    if name in __all__ and _is_for_serving:
        _set_up()
    if name == "keras" and _keras_error is not None:
        raise ImportError(
            f"{__name__}.keras cannot be imported: {_keras_error}"
        ) from _keras_error
    if name in ("data", "distribute", "keras", "ops", "train"):
        return importlib.import_module(f"{__name__}.{name}")
    if name == "install_v1_names":
        module = importlib.import_module(f"{__name__}.python.v1.v1_names")
        return module.install_v1_names
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def _register_with_keras() -> None:
    """Imports the classes that saved models may name.

    TensorFlow has imported Keras already, so this takes hundredths of a second. If the
    chosen Keras is not installed, `ops` and `train` still work.
    """
    global _keras_error
    try:
        importlib.import_module(f"{__name__}.keras")
    # If it is asked a second time for a missing Keras, TensorFlow raises the second
    # error.
    except (ImportError, RecursionError) as error:
        _keras_error = error


def _choose_rpc_layer() -> None:
    """Lets TF_CONFIG name the protocol by which this task talks to others."""
    if os.environ.get("TF_CONFIG"):
        wire = importlib.import_module(f"{__name__}.python.distribute.wire")
        wire.choose(os.environ)


@functools.cache
def _set_up() -> None:
    load()
    _choose_rpc_layer()
    _register_with_keras()


_is_for_serving = _imported_for_serving()
if not (_imported_by_own_command() or _is_for_serving):
    _set_up()
