"""How many steps one execution has, and how many callbacks are told of together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

# The most steps that are traced into one function. With more of them, a step costs
# hardly less, but tracing takes longer, in proportion to their number.
LARGEST_EXECUTION = 16
# The aims of "auto": an execution takes at most this time, so that callbacks and a
# progress bar hear of it; and each worker has at least this many of them in an epoch,
# since at its end some workers wait for the others.
_AUTO_SECS = 0.5
_AUTO_EXECUTIONS = 8
# How many single steps of each worker "auto" waits for, since the first calls of a
# function take long, and how many it then measures.
_AUTO_FIRST, _AUTO_TIMED = 4, 8


class Sizes:
    """The sizes of the executions of an epoch.

    There are only two sizes, so that two functions are traced: large executions, and
    single steps for the rest of the steps that callbacks are told of at once.
    """

    def __init__(self, per_call: int):
        self._set(per_call)

    def begin_epoch(self) -> None:
        """Begins another epoch."""
        self._num_in_call = 0

    def next(self, num_left: int | None = None) -> int:
        """Returns the number of steps of the next execution."""
        size = self.per_call - self._num_in_call
        if num_left is not None:
            size = min(size, num_left)
        size = self.largest if size >= self.largest else 1
        self._num_in_call = (self._num_in_call + size) % self.per_call
        return size

    def note_taken(self) -> None:
        """Notes that the result of an execution was taken."""

    def _set(self, per_call: int) -> None:
        self.per_call = per_call
        self.largest = per_call // -(-per_call // LARGEST_EXECUTION)
        self._num_in_call = 0


class AutoSizes(Sizes):
    """The sizes that `steps_per_execution="auto"` stands for.

    The first executions are single steps, whose duration decides about the size of the
    others.
    """

    def __init__(
        self,
        num_workers: int,
        num_steps: int | None,
        now: Callable[[], float] = time.monotonic,
    ):
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
        """Notes that the result of an execution was taken."""
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
    """Returns whether a callback, neither Keras' nor ours, has a hook for batches."""
    hooks = [f"on_{kind}_batch_{end}" for end in ("begin", "end")]
    base = tf.keras.callbacks.Callback
    for callback in callbacks:
        if any(hook in vars(callback) for hook in hooks):
            return True  # It is a LambdaCallback.
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
    """Tells callbacks of the batches of an epoch, several at once, as Keras does.

    Callbacks get the same numbers as from Keras. Since executions of several workers
    arrive in any order, logs may already contain some later steps.
    """

    def __init__(
        self,
        begin: Callable[[int], None],
        end: Callable[[int, Any], None],
        sizes: Sizes,
        first_step: int = 0,
    ):
        self._begin = begin
        self._end = end
        self._sizes = sizes
        self._taken = first_step
        self._due: int | None = None
        self._told = first_step

    def begin(self) -> None:
        """Notes that the result of an execution is about to be taken."""
        if self._due is None:
            self._due = self._told + self._sizes.per_call
            self._begin(self._told)

    def end(self, num_steps: int, logs: Any) -> None:
        """Notes that the result was taken, of so many steps."""
        self._taken += num_steps
        if self._due is not None and self._taken >= self._due:
            self._tell(self._due, logs)

    def finish(self, logs: Any) -> None:
        """Tells of the steps that are left at the end of an epoch."""
        if self._taken > self._told:
            self.begin()
            self._tell(self._taken, logs)

    def _tell(self, end: int, logs: Any) -> None:
        self._told, self._due = end, None
        self._end(end - 1, logs)
