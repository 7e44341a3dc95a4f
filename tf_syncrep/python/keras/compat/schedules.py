"""What an optimizer's configuration leaves out: its schedule, and exclusions."""

from typing import Any


def schedule_of(optimizer: Any) -> Any:
    """Returns the schedule or function that computes an optimizer's learning rate.

    Private: the public `learning_rate` is the present rate.

    Returns the argument of the constructor; None if it was a number.
    """
    rate = optimizer._learning_rate
    return rate if callable(rate) else None


def excludes_from_weight_decay(optimizer: Any) -> bool:
    """Returns whether `exclude_from_weight_decay` was called with anything.

    Private: it can be set, and not be asked.
    """
    name = "_exclude_from_weight_decay"
    kinds = ("", "_pattern", "_names")  # The second is Keras 3's, the third Keras 2's.
    return any(getattr(optimizer, name + kind, None) for kind in kinds)
