"""Whether tables, weights and other numbers in some structure are the same."""

from typing import Any

import numpy as np


def assert_same(
    found: Any, expected: Any, tolerance: float = 0.0, where: str = ""
) -> None:
    """Compares numbers in dicts, sequences and arrays; `found` may have more names.

    Without a tolerance, which is relative and absolute, they must be equal.
    """
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_same(found[name], value, tolerance, f"{where} {name}")
    elif isinstance(expected, list | tuple) and not all(map(np.isscalar, expected)):
        assert len(found) == len(expected), where
        for i, value in enumerate(expected):
            assert_same(found[i], value, tolerance, f"{where} {i}")
    elif tolerance:
        np.testing.assert_allclose(found, expected, tolerance, tolerance, err_msg=where)
    else:
        np.testing.assert_array_equal(found, expected, where)
