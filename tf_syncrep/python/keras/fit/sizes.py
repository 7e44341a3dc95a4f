"""How many steps one execution has, and of how many callbacks are told at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

# Steps that are traced into one function. With more of them, a step costs hardly less,
# and the function takes longer to trace: the time is proportional to their number.
LARGEST_EXECUTION = 16
# What "auto" aims at: an execution is to take so long at most, so that callbacks and a
# progress bar hear of it; and each worker is to have so many in an epoch, as some have
# to wait for the others' last ones.
_AUTO_SECS = 0.5
_AUTO_EXECUTIONS = 8
# Of each worker: how many single steps "auto" awaits before it takes the time, as the
# first ones of a function take long, and of how many it takes it.
_AUTO_FIRST, _AUTO_TIMED = 4, 8


class Sizes:
    """The sizes of the executions of an epoch.

    There are two, so that two functions are traced: a large one, and single steps for
    what is left at the end of so many steps as callbacks are told of at once.

    Attributes:
        per_call: how many steps callbacks are told of at once.
        largest: the number of steps of the large ones.
    """

    def __init__(self, per_call: int):
        """Begins an epoch."""
        self._set(per_call)

    def begin_epoch(self) -> None:
        """Begins another epoch."""
        self._num_in_call = 0

    def next(self, num_left: int | None = None) -> int:
        """The number of steps of the next execution."""
        size = self.per_call - self._num_in_call
        if num_left is not None:
            size = min(size, num_left)
        size = self.largest if size >= self.largest else 1
        self._num_in_call = (self._num_in_call + size) % self.per_call
        return size

    def note_taken(self) -> None:
        """Notes that the result of an execution was taken up."""

    def _set(self, per_call: int) -> None:
        self.per_call = per_call
        self.largest = per_call // -(-per_call // LARGEST_EXECUTION)
        self._num_in_call = 0


class AutoSizes(Sizes):
    """Those that `steps_per_execution="auto"` stands for.

    They are single steps at first, whose time tells how many to make at once.
    """

    def __init__(
        self,
        num_workers: int,
        num_steps: int | None,
        now: Callable[[], float] = time.monotonic,
    ):
        """Begins with single steps.

        Args:
            num_workers: how many workers make steps at once.
            num_steps: of an epoch, if that is known.
            now: the clock, in seconds.
        """
        super().__init__(1)
        self._num_workers = num_workers
        self._limit = LARGEST_EXECUTION
        if num_steps is not None:
            self._limit = min(
                self._limit, num_steps // (num_workers * _AUTO_EXECUTIONS)
            )
        self._now = now
        self._num_taken = 0
        self._begun_at = 0.0

    def note_taken(self) -> None:
        """Notes that the result of an execution was taken up."""
        self._num_taken += 1
        num_steps = self._num_taken - _AUTO_FIRST * self._num_workers
        if num_steps == 0:
            self._begun_at = self._now()
        elif num_steps == _AUTO_TIMED * self._num_workers:
            step_secs = (self._now() - self._begun_at) / _AUTO_TIMED
            size = 1
            while 2 * size <= self._limit and 2 * size * step_secs <= _AUTO_SECS:
                size *= 2
            self._set(size)


def hear_of_batches(callbacks: Iterable[Any], kind: str) -> bool:
    """Whether a callback that is neither Keras' nor ours has a hook by batch."""
    hooks = [f"on_{kind}_batch_{end}" for end in ("begin", "end")]
    base = tf.keras.callbacks.Callback
    for callback in callbacks:
        if any(hook in vars(callback) for hook in hooks):
            return True  # a LambdaCallback
        if type(callback).__module__.partition(".")[0] in (
            "keras",
            "tf_keras",
            "tf_syncrep",
        ):
            continue
        also = ["on_batch_begin", "on_batch_end"] if kind == "train" else []
        if any(
            getattr(type(callback), hook) is not getattr(base, hook)
            for hook in (*hooks, *also)
        ):
            return True
    return False


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
        """Notes that it was."""
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
