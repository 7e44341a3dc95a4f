"""The devices on which tests of ops with GPU kernels run.

A test module sets `pytestmark = pytest.mark.usefixtures("device")`. Its tests then run
once on the CPU and, if TensorFlow sees a GPU and the op library has kernels for it,
once on the GPU; otherwise their names do not mention devices. Variables are made under
`scope()`, and ops run where these are. The fixture `on_device` puts all eager ops of a
test under `scope()`.
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
    """Makes `scope()` use that device."""
    _current.append(device)
    try:
        yield
    finally:
        _current.pop()


def scope() -> contextlib.AbstractContextManager:
    """Puts its contents on the test's device, if the test uses one."""
    if not _current:
        return contextlib.nullcontext()
    return tf.device(f"/device:{_current[-1]}:0")
