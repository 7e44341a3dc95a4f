"""Fixtures that several folders of tests share."""

import importlib.util
import os
import pathlib
import signal

import pytest

# A shell that starts pytest in the background has SIGINT ignored, in what tests start,
# too; some of them are about what it does there.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("keras_sync_cluster", "sync_replicas_cluster")

# Whether tests run after `tf.compat.v1.disable_v2_behavior`, as v1 scripts do.
_AS_IN_V1 = bool(os.environ.get("TF_SYNCREP_V1_BEHAVIOR"))

# Why tests that take a device run on the CPU alone, once that is known.
_why_no_gpu = pytest.StashKey[str]()


def pytest_configure():
    """Says once what every test would, and prepares TensorFlow where that is asked for.

    That the package was not built where it lies: `python -m pytest` puts the folder it
    runs in before what is installed.
    """
    if _AS_IN_V1:
        import tensorflow as tf

        tf.compat.v1.disable_v2_behavior()
    spec = importlib.util.find_spec("tf_syncrep")
    if spec is None or spec.origin is None:
        return
    package = pathlib.Path(spec.origin).parent
    if not (package / "libtf_syncrep.so").exists():
        raise pytest.UsageError(
            f"tf_syncrep is imported from {package}, where its op library was not "
            "built. Run `make test`, which builds all that is needed; or, with "
            "tf_syncrep installed, `pytest` instead of `python -m pytest`; or build "
            "it in place: `pip install --no-build-isolation --no-deps -e .`"
        )


def pytest_collection_modifyitems(items):
    """Leaves out what executes eagerly where that is switched off."""
    if _AS_IN_V1:
        items[:] = [item for item in items if not item.get_closest_marker("eager")]


def pytest_generate_tests(metafunc):
    """Runs tests that use `device` on each there is, and names it if there are two."""
    if "device" not in metafunc.fixturenames:
        return
    import devices

    reason = devices.why_no_gpu()
    if reason is None:
        metafunc.parametrize("device", ["CPU", "GPU"], indirect=True)
    elif os.environ.get("TF_SYNCREP_WANT_GPU"):
        raise pytest.UsageError(f"TF_SYNCREP_WANT_GPU is set, but {reason}")
    else:
        metafunc.config.stash[_why_no_gpu] = reason


def pytest_terminal_summary(terminalreporter, config):
    """Says what tests that take a device have not run on."""
    if _why_no_gpu in config.stash:
        reason = config.stash[_why_no_gpu]
        terminalreporter.write_line(f"Tests of devices ran on the CPU alone: {reason}.")


@pytest.fixture
def device(request):
    """The type of device that a test's variables are on: "CPU" or "GPU"."""
    import devices

    name = getattr(request, "param", "CPU")
    with devices.use(name):
        yield name


@pytest.fixture
def on_device(device):
    """Puts what a test does eagerly on that device, as far as it has kernels."""
    import devices

    with devices.scope():
        yield device
