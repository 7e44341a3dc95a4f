"""Fixtures for tests of the v1 optimizers."""

import pytest


@pytest.fixture
def case(name, device):
    """The optimizer that a test's parameter `name` names, in `v1_optimizers.CASES`."""
    import v1_optimizers

    if device == "GPU" and name in v1_optimizers.RULES:
        pytest.skip("the rules have no GPU kernels")
    return v1_optimizers.CASES[name]
