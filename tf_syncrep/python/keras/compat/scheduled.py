"""Tracing of what a coordinator schedules, by whichever thread does it."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def as_scheduled(strategy: Any) -> Iterator[None]:
    """Within this context, a strategy runs replicas as if a coordinator scheduled them.

    A function that a coordinator schedules may be traced later, by the thread of a
    worker, and one that only builds a model is not scheduled at all. In both cases
    TensorFlow would warn, in each first training, that steps run on the coordinator.

    Private: nothing public says that a step is only traced. Other strategies do not
    read this attribute (checked with TensorFlow 2.15.1 and 2.21.0).
    """
    extended = strategy.extended
    before = getattr(extended, "_allow_run_without_coordinator", False)
    extended._allow_run_without_coordinator = True
    try:
        yield
    finally:
        extended._allow_run_without_coordinator = before
