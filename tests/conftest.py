"""Fixtures that several folders of tests share."""

import signal

import pytest

# A shell that starts pytest in the background has SIGINT ignored, in what tests start,
# too; some of them are about what it does there.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("sync_replicas_cluster", "keras_sync_cluster")


def pytest_generate_tests(metafunc):
    """Runs tests that use `device` on each there is, and names it if there are two."""
    if "device" in metafunc.fixturenames:
        import devices

        if len(devices.available()) > 1:
            metafunc.parametrize("device", devices.available(), indirect=True)


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


@pytest.fixture(scope="session")
def forks():
    """Where processes come from that are to have imported TensorFlow already."""
    import fork_server

    server = fork_server.ForkServer(
        "tensorflow.compat.v1", "tf_syncrep", "tf_syncrep.python.cli"
    )
    yield server
    server.close()
