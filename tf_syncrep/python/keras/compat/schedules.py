"""The schedule of an optimizer's learning rate."""

from typing import Any


def schedule_of(optimizer: Any) -> Any:
    """Returns the schedule or function that computes an optimizer's learning rate.

    Private: the public `learning_rate` is the present rate.

    Returns the argument of the constructor; None if it was a number.
    """
    rate = optimizer._learning_rate
    return rate if callable(rate) else None
