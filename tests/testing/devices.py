"""The devices on which tests of ops that have GPU kernels run.

A test module says `pytestmark = pytest.mark.usefixtures("device")`. Its tests then run
once on the CPU and, where TensorFlow sees a GPU and the op library has kernels for it,
once on the GPU; where not, their names say nothing of devices. Variables are made under
`scope()`, and the ops go where these are. The fixture `on_device` puts all that a test
does eagerly under `scope()`.
"""

import contextlib

import tensorflow as tf

from tf_syncrep.python.ops import op_library

_current: list[str] = []


def why_no_gpu() -> str | None:
    """Why there is no GPU to test on, or None if there is one."""
    if not op_library.has_kernels_for("GPU"):
        return "the op library was built without GPU kernels"
    if not tf.config.list_physical_devices("GPU"):
        return "TensorFlow sees no GPU"
    return None


@contextlib.contextmanager
def use(device: str):
    """Lets `scope()` be that device."""
    _current.append(device)
    try:
        yield
    finally:
        _current.pop()


def scope() -> contextlib.AbstractContextManager:
    """Puts what is made in it on the test's device, if the test has asked for one."""
    if not _current:
        return contextlib.nullcontext()
    return tf.device(f"/device:{_current[-1]}:0")
