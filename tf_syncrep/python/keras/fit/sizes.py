"""How many steps one execution has, and of how many callbacks are told at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Steps that are traced into one function. With more of them, a step costs hardly less,
# and the function takes longer to trace: the time is proportional to their number.
LARGEST_EXECUTION = 16


class Sizes:
    """The sizes of the executions of an epoch.

    There are two, so that two functions are traced: a large one, and single steps for
    what is left at the end of so many steps as callbacks are told of at once.

    Attributes:
        per_call: how many steps callbacks are told of at once.
    """

    def __init__(self, per_call: int):
        """Begins an epoch.

        Args:
            per_call: what Keras calls `steps_per_execution`.
        """
        self.per_call = per_call
        self.largest = per_call // -(-per_call // LARGEST_EXECUTION)
        self._num_in_call = 0

    def next(self, num_left: int | None = None) -> int:
        """The number of steps of the next execution.

        Args:
            num_left: how many steps the epoch has left, if that is known.
        """
        size = self.per_call - self._num_in_call
        if num_left is not None:
            size = min(size, num_left)
        size = self.largest if size >= self.largest else 1
        self._num_in_call = (self._num_in_call + size) % self.per_call
        return size


class Calls:
    """Tells callbacks of the batches of an epoch, of so many at once, as Keras does.

    The numbers that they are told are those of Keras. Executions of several workers
    come in any order, and logs may contain some steps more than that.
    """

    def __init__(
        self,
        begin: Callable[[int], None],
        end: Callable[[int, Any], None],
        sizes: Sizes,
        first_step: int = 0,
    ):
        """Tells nothing yet.

        Args:
            begin: called with the first of some steps, before their results are there.
            end: called with the last of them, and logs.
            sizes: of how many steps to tell at once.
            first_step: the first step.
        """
        self._begin = begin
        self._end = end
        self._sizes = sizes
        self._taken = first_step
        self._due: int | None = None
        self._told = first_step

    def begin(self) -> None:
        """Notes that the result of an execution is to be taken up."""
        if self._due is None:
            self._due = self._told + self._sizes.per_call
            self._begin(self._told)

    def end(self, num_steps: int, logs: Any) -> None:
        """Notes that it was.

        Args:
            num_steps: the number of its steps.
            logs: what they have returned.
        """
        self._taken += num_steps
        if self._due is not None and self._taken >= self._due:
            self._tell(self._due, logs)

    def finish(self, logs: Any) -> None:
        """Tells of steps that are left at the end of an epoch."""
        if self._taken > self._told:
            self.begin()
            self._tell(self._taken, logs)

    def _tell(self, end: int, logs: Any) -> None:
        self._told, self._due = end, None
        self._end(end - 1, logs)
