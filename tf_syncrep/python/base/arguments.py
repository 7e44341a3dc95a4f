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
    """Returns Python's number for one of NumPy's, which JSON cannot save."""
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
    """Checks that a hyper-parameter is a number in [0, below)."""
    _check(name, value, "a number", numbers.Real)
    end = "inf" if math.isinf(below) else f"{below:g}"
    rule = f"in the range [0, {end})"
    return float(
        _check(name, value, rule, numbers.Real, lambda x: 0 <= float(x) < below)
    )


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Checks that an argument is a whole number of at least `least`."""
    rule = f"a whole number of at least {least}"
    return int(_check(name, value, rule, numbers.Integral, lambda x: x >= least))


def check_whole(name: str, value: Any) -> int:
    """Checks that an argument is a whole number of 64 bits."""
    rule, bound = "a whole number of 64 bits", 2**63
    return int(
        _check(name, value, rule, numbers.Integral, lambda x: -bound <= int(x) < bound)
    )


def check_power(name: str, value: Any) -> float:
    """Checks that an argument is a finite number of at most 0."""
    rule = "a finite number of at most 0"
    return float(
        _check(name, value, rule, numbers.Real, lambda x: -math.inf < float(x) <= 0)
    )


def check_positive(name: str, value: Any) -> float:
    """Checks that an argument is a finite number above 0."""
    rule = "a finite number above 0"
    return float(
        _check(name, value, rule, numbers.Real, lambda x: 0 < float(x) < math.inf)
    )


def _check(
    name: str,
    value: Any,
    rule: str,
    kind: type,
    is_allowed: Callable[[Any], bool] = lambda _: True,
) -> Any:
    """Returns a value that is a number of a kind, and no boolean, within a range."""
    if isinstance(value, bool) or not isinstance(value, kind) or not is_allowed(value):
        shown = as_python(value)
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={shown!r}")
    return value
