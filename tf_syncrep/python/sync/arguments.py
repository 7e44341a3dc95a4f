"""Checks of numbers that users give to optimizers and reports."""

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def as_python(value: Any) -> Any:
    """Returns Python's number for one of NumPy's, which JSON cannot save.

    `value`: any value; other values are returned as they are.
    """
    return value.item() if isinstance(value, np.generic) else value


def with_python_numbers(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Makes a function convert NumPy's numbers among its arguments to Python's."""

    @functools.wraps(function)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        options: dict[str, Any] = {name: as_python(x) for name, x in kwargs.items()}
        return function(*map(as_python, args), **options)

    return called


def check_number(name: str, value: Any, *, below: float = math.inf) -> float:
    """Checks that a hyper-parameter is a number in [0, below).

    Raises ValueError: the value is not a number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"`{name}` must be a number. Received: {name}={value!r}")
    number = float(value)
    if not 0 <= number < below:
        end = "inf" if math.isinf(below) else f"{below:g}"
        raise ValueError(
            f"`{name}` must be in the range [0, {end}). Received: {name}={value}"
        )
    return number


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Checks that an argument is a whole number of at least `least`.

    Raises ValueError: the value is not such a number.
    """
    if not _is(numbers.Integral, value) or value < least:
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}. "
            f"Received: {name}={value!r}"
        )
    return int(value)


def check_whole(name: str, value: Any) -> int:
    """Checks that an argument is a whole number of 64 bits.

    Raises ValueError: the value is not such a number.
    """
    if not _is(numbers.Integral, value) or not -(2**63) <= int(value) < 2**63:
        raise ValueError(
            f"`{name}` must be a whole number of 64 bits. Received: {name}={value!r}"
        )
    return int(value)


def check_power(name: str, value: Any) -> float:
    """Checks that an argument is a finite number of at most 0.

    Raises ValueError: the value is not such a number.
    """
    if not _is(numbers.Real, value) or not -math.inf < float(value) <= 0:
        raise ValueError(
            f"`{name}` must be a finite number of at most 0. Received: {name}={value!r}"
        )
    return float(value)


def check_positive(name: str, value: Any) -> float:
    """Checks that an argument is a finite number above 0.

    Raises ValueError: the value is not such a number.
    """
    if not _is(numbers.Real, value) or not 0 < float(value) < math.inf:
        raise ValueError(
            f"`{name}` must be a finite number above 0. Received: {name}={value!r}"
        )
    return float(value)


def _is(kind, value):
    """Returns whether a value is a number of a kind; booleans do not count."""
    return isinstance(value, kind) and not isinstance(value, bool)
