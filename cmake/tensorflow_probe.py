"""Prints what a build must know of the TensorFlow of this Python, a KEY=value a line.

CMake, Bazel and configure.sh run this file by its path. It ends with status 1 when
there is no TensorFlow, with 2 when it is one that tf_syncrep does not support, and
then says the remedy on stderr.
"""

import os
import sys
import tempfile
from typing import TextIO

OLDEST, NEWEST = (2, 15), (2, 22)
_NONE, _UNSUPPORTED = 1, 2

# One line for each paragraph: CMake wraps them.
ISOLATED_BUILD_REMEDY = """\
uv, poetry and `python -m build` build in an environment of their own, in which your \
TensorFlow cannot be seen. Turn that off:
  pip install scikit-build-core cmake ninja
  uv pip install --no-build-isolation .     (or: python -m build --no-isolation)"""


def _supported() -> str:
    return f"TensorFlow {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def _no_tensorflow(reason: str) -> str:
    return (
        "tf_syncrep is built against the TensorFlow that it will run with, and this "
        f"Python has none that it can import:\n  {sys.executable}: {reason}\n"
        "Install one into the same environment, then repeat the command:\n"
        f"  {sys.executable} -m pip install tensorflow    (or tensorflow-cpu)\n"
        f"Supported: {_supported()}.\n{ISOLATED_BUILD_REMEDY}"
    )


def _unsupported(version: str) -> str:
    return (
        f"tf_syncrep supports {_supported()}; {sys.executable} has TensorFlow "
        f"{version}.\nInstall a supported one, then repeat the command:\n"
        f"  {sys.executable} -m pip install 'tensorflow=={NEWEST[0]}.{NEWEST[1]}.*'"
        "    (or tensorflow-cpu)"
    )


def main() -> int:
    """Prints the facts on stdout; returns the exit status.

    TensorFlow logs a page before it looks for a level, and our message would be lost
    below it. So this is shown only if TensorFlow cannot be imported, or ends the
    process, as it does on a processor that it was not built for: then it may say why.
    """
    with tempfile.TemporaryFile() as log:
        message_fd = os.dup(2)
        child = os.fork()
        if child == 0:
            os.dup2(log.fileno(), 2)
            with os.fdopen(message_fd, "w") as messages:
                return _probe(messages)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, _UNSUPPORTED):
            log.seek(0)
            sys.stderr.buffer.write(log.read())
    return status


def _probe(messages: TextIO) -> int:
    """Prints the facts on stdout, or why there are none; returns the exit status."""
    try:
        import tensorflow as tf
    except Exception as error:
        print(_no_tensorflow(f"{type(error).__name__}: {error}"), file=messages)
        return _NONE
    version = tf.__version__
    if not OLDEST <= tuple(int(part) for part in version.split(".")[:2]) <= NEWEST:
        print(_unsupported(version), file=messages)
        return _UNSUPPORTED
    include = tf.sysconfig.get_include()
    flags = [f for f in tf.sysconfig.get_compile_flags() if not f.startswith("-I")]
    library_name = next(
        f.removeprefix("-l:") for f in tf.sysconfig.get_link_flags() if f[:3] == "-l:"
    )
    has_cuda = tf.sysconfig.get_build_info().get("is_cuda_build", False)
    print(f"VERSION={version}")
    print(f"INCLUDE_DIR={include}")
    print(f"LIBRARY={os.path.join(tf.sysconfig.get_lib(), library_name)}")
    # What the servers are in; its name has the version that the other's has.
    cc_library = library_name.replace("_framework", "_cc")
    print(f"CC_LIBRARY={os.path.join(tf.sysconfig.get_lib(), cc_library)}")
    print(f"COMPILE_FLAGS={' '.join(flags)}")
    print(f"CUDA={'ON' if has_cuda else 'OFF'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
