"""Finds, checks and loads the op library.

TensorFlow's C++ ABI changes with every minor version, so the library runs only with the
version for which it was built. This is checked before the library is opened, since the
dynamic linker's message about a missing symbol helps nobody.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import os
import shlex
import sys
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlparse

_LIBRARY_NAME = "libtf_syncrep.so"
_PACKAGE_FOLDER = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)


def library_path() -> str:
    """Returns the path of the op library, for `tf.load_op_library`.

    Example:
    ```python
    import tensorflow as tf
    import tf_syncrep as tfs

    raw_ops = tf.load_op_library(tfs.library_path())
    ```
    """
    return os.path.join(_PACKAGE_FOLDER, _LIBRARY_NAME)


def build_info() -> ModuleType | None:
    """Returns what the build recorded about itself, or None if nothing was built.

    The module has the strings TF_VERSION and COMPILER, and CUDA_VERSION, which is None
    for a library without GPU kernels.
    """
    try:
        return importlib.import_module("tf_syncrep._build_info")
    except ModuleNotFoundError:
        return None


def has_kernels_for(device_type: str) -> bool:
    """Returns whether the library was built with kernels for devices of a type."""
    if device_type != "GPU":
        return device_type == "CPU"
    built = build_info()
    return built is not None and built.CUDA_VERSION is not None


def minor_version(version: str) -> str:
    """Returns the part of a TensorFlow version that decides its ABI."""
    return ".".join(version.split(".")[:2])


def install_command(tf_version: str) -> str:
    """Returns the shell command that installs tf_syncrep for a TensorFlow.

    If the installed wheel's version names its TensorFlow, as 0.1.0+tf2.21 does, the
    command installs the wheel for the other one; otherwise it builds tf_syncrep.
    """
    distribution, origin = _distribution()
    version = distribution.version if distribution and not _source_tree() else ""
    public, _, tensorflow = version.partition("+tf")
    if not tensorflow:
        return build_command()
    url = urlparse(origin.get("url", ""))
    folder = os.path.dirname(unquote(url.path))
    beside = f"--find-links {shlex.quote(folder)} " if url.scheme == "file" else ""
    return (
        f"{sys.executable} -m pip install --no-deps {beside}"
        f"'tf_syncrep=={public}+tf{minor_version(tf_version)}'"
    )


def build_command() -> str:
    """Returns the shell command that builds tf_syncrep for the TensorFlow in use.

    It names the source tree in which this package lies, which what is installed
    elsewhere would not mend; or else the folder from which tf_syncrep was installed, if
    pip has recorded it.
    """
    tree = _source_tree()
    if tree:
        return f"{sys.executable} -m pip install -e {shlex.quote(tree)}"
    source = "PATH_TO_THE_SOURCE_OF_TF_SYNCREP"
    _, origin = _distribution()
    url = urlparse(origin.get("url", ""))
    if url.scheme == "file" and "dir_info" in origin:
        source = shlex.quote(unquote(url.path))
    return (
        f"{sys.executable} -m pip install --no-cache-dir --force-reinstall --no-deps "
        f"{source}"
    )


def _source_tree() -> str | None:
    """Returns the folder of the source tree that this package is part of, if it is."""
    folder = os.path.dirname(_PACKAGE_FOLDER)
    return folder if os.path.exists(os.path.join(folder, "CMakeLists.txt")) else None


def _distribution() -> tuple[importlib.metadata.Distribution | None, dict[str, Any]]:
    """Returns the installed distribution, if any, and pip's record of its origin."""
    try:
        distribution = importlib.metadata.distribution("tf_syncrep")
    except importlib.metadata.PackageNotFoundError:
        return None, {}
    record = distribution.read_text("direct_url.json")
    return distribution, json.loads(record) if record else {}


@functools.cache
def load() -> ModuleType:
    """Loads the op library into this process; further calls cost nothing.

    Raises ImportError: There is no library, no TensorFlow, a TensorFlow of another
    minor version than the one built against, or the library does not load. The message
    says which, and the command that fixes it.
    """
    built = build_info()
    if built is None or not os.path.exists(library_path()):
        raise ImportError(
            f"tf_syncrep has no op library: {library_path()} was not built. "
            f"Build it:\n  {build_command()}"
        )
    needed = minor_version(built.TF_VERSION)
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            f"tf_syncrep was built for TensorFlow {built.TF_VERSION}, and TensorFlow "
            f"cannot be imported here ({error}). Install it:\n"
            f"  {sys.executable} -m pip install 'tensorflow=={needed}.*'"
            "    (or tensorflow-cpu)"
        ) from error
    if minor_version(tf.__version__) != needed:
        raise ImportError(
            f"tf_syncrep was built for TensorFlow {built.TF_VERSION}, and TensorFlow "
            f"{tf.__version__} is running; a library runs only with the minor version "
            "that it was built for. Install tf_syncrep for it:\n"
            f"  {install_command(tf.__version__)}"
        )
    try:
        return tf.load_op_library(library_path())
    except tf.errors.OpError as error:
        raise ImportError(
            f"tf_syncrep's op library, built for TensorFlow {built.TF_VERSION}, does "
            f"not load into TensorFlow {tf.__version__}: {error.message}\n"
            f"Build it again:\n  {build_command()}"
        ) from error


def function(name: str, prefixes: tuple[str, ...]) -> Any:
    """Returns the op of this name, for the `__getattr__` of a module of such ops."""
    if not name.startswith(prefixes):
        raise AttributeError(f"There is no op of the name {name!r} here.")
    return getattr(load(), f"syncrep_{name}")
