"""Checks of the numbers that a Keras optimizer is made with."""

import math
import numbers
from typing import Any


def check_number(name: str, value: Any, *, below: float = math.inf) -> float:
    """Checks that a hyper-parameter is a number in [0, below).

    Args:
        name: the argument's name.
        value: what was given for it.
        below: exclusive upper limit.

    Returns:
        The value as a float.

    Raises:
        ValueError: it is not a number, or out of range.
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
