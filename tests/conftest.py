"""Fixtures that several folders of tests share."""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import signal

import pytest

# A shell that starts pytest in the background makes it ignore SIGINT, and so do the
# processes that tests start. Some tests are about SIGINT in these.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("keras_sync_cluster", "sync_replicas_cluster")

# Why tests are skipped where all is there that they need: what is of another version,
# what a case does not have, what no step of CI installs, and GPUs.
_EXPECTED_SKIPS = re.compile(
    "(?i)keras|this TensorFlow has Estimator|TensorFlow 2.15 was the last with it"
    "|has no dense form|has no slots|a number of ftrl|its values have three dimensions"
    "|its optimizers do not lead to what they train|partitioned layers are trained by"
    "|torch is not installed|import '(torch|fbgemm_gpu)|tensorboard|as under nohup"
    "|have no GPU kernels|has no IPv6|there is no NVIDIA GPU here|nvcc is not on PATH"
)

# Whether tests run after `tf.compat.v1.disable_v2_behavior`, as v1 scripts do.
_AS_IN_V1 = bool(os.environ.get("TF_SYNCREP_V1_BEHAVIOR"))

# Why tests with a device run only on the CPU, once that is known.
_why_no_gpu = pytest.StashKey[str]()


def pytest_configure():
    """Checks the package once for all tests, and prepares TensorFlow if that is needed.

    `python -m pytest` puts the current folder, where it may not have been built, before
    installed packages; then it takes those.
    """
    if _AS_IN_V1:
        import tensorflow as tf

        tf.compat.v1.disable_v2_behavior()
    spec = importlib.util.find_spec("tf_syncrep")
    package = pathlib.Path(spec.origin).parent if spec and spec.origin else None
    if package and not any(
        (folder / "libtf_syncrep.so").exists() for folder in (package, _installed())
    ):
        raise pytest.UsageError(
            f"tf_syncrep is imported from {package}, where its op library was not "
            "built. Run `make test`, which builds all that is needed; or build it in "
            "place: `pip install --no-build-isolation --no-deps -e .`"
        )
    import garbage  # noqa: F401


def _installed() -> pathlib.Path:
    """Returns the folder of the installed package, or one that is not there."""
    try:
        distribution = importlib.metadata.distribution("tf_syncrep")
    except importlib.metadata.PackageNotFoundError:
        return pathlib.Path("none")
    return pathlib.Path(str(distribution.locate_file("tf_syncrep")))


def pytest_collection_modifyitems(items):
    """Leaves out tests that execute eagerly if that is switched off."""
    if _AS_IN_V1:
        items[:] = [item for item in items if not item.get_closest_marker("eager")]


def pytest_collection_finish():
    """Leaves what was imported out of the search for garbage."""
    import garbage

    garbage.collect_rarely()


def _judged(report):
    """Returns the report; in CI, where nothing may be missing, a skip has failed."""
    if os.environ.get("CI") and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if not _EXPECTED_SKIPS.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{reason}\ntests/conftest.py does not expect that in CI."
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Has a skip for want of something fail in CI."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """The same for files that are skipped as a whole."""
    return _judged((yield))


def pytest_generate_tests(metafunc):
    """Runs tests with `device` on each device, and names it if there are two."""
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
    """Says on which devices tests have not run."""
    if _why_no_gpu in config.stash:
        reason = config.stash[_why_no_gpu]
        terminalreporter.write_line(f"Tests of devices ran on the CPU alone: {reason}.")


@pytest.fixture
def device(request):
    """The type of the device with a test's variables: "CPU" or "GPU"."""
    import devices

    name = getattr(request, "param", "CPU")
    with devices.use(name):
        yield name


@pytest.fixture
def on_device(device):
    """Puts the eager ops of a test on that device, as far as it has kernels."""
    import devices

    with devices.scope():
        yield device
