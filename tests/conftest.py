"""Fixtures that several folders of tests share."""

import pytest


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
