"""Executions that are under way, and their results as they arrive."""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras.compat.coordinator import (
    Cancellation,
    may_be_lost,
    schedule,
    worker_index,
)
from tf_syncrep.python.keras.fit.batches import Batches, Scheduled
from tf_syncrep.python.keras.fit.departures import Departures
from tf_syncrep.python.keras.fit.execution import Execution, Executions

# The log tells of a silence after this time, and each time after twice as long.
FIRST_SECS = 60.0


class StepCancelledError(RuntimeError):
    """A step was cancelled on a worker that was not lost, and nothing says why.

    It is none of TensorFlow's errors, for some of which a coordinator runs a step again
    though the step has taken its batches.
    """


class Result(NamedTuple):
    """What became of an execution, or of a part of what was scheduled.

    `fetched`: what it returned; None if that was lost with the worker. `is_last`:
    whether what was scheduled is done; otherwise there are more results.
    """

    worker: int
    num_steps: int = 0
    execution: Execution | None = None
    fetched: Any = None
    has_ended: bool = False
    untraced: int = 0
    is_last: bool = True

    def take(self, if_lost: Any) -> Any:
        """Adds to the metrics, and returns what the steps returned.

        `if_lost`: returned if the worker was lost after the execution and before its
        numbers were fetched.
        """
        if self.fetched is None or self.execution is None:
            return if_lost
        return self.execution.take(self.fetched)


class Silence:
    """Says in the log that no step has ended for long, and who may be waited for."""

    def __init__(self, answers: Callable[[], str]):
        # It may take some seconds, and is called only when the log says something.
        self._answers = answers
        self.end()

    def end(self) -> None:
        """Takes note that a result has come."""
        self._secs = 0.0
        self._told_at = FIRST_SECS

    def add(self, secs: float) -> None:
        """Takes note that none has come while it was waited for so many seconds."""
        self._secs += secs
        if self._secs < self._told_at:
            return
        self._told_at = 2 * self._secs
        sentences = [
            f"fit: no step has ended for {self._secs:.0f} s.",
            self._answers(),
            "First steps wait until functions are compiled and data are there, and "
            "later ones for data, for a task that hangs, or for another worker, which "
            "`stats()` of SyncReplicas names.",
        ]
        logging.warning("%s", " ".join(filter(None, sentences)))


class Arrivals:
    """Schedules executions, and takes their results in the order of arrival.

    The thread of a worker, which the coordinator has, runs an execution, fetches its
    numbers, and puts them into a queue.
    """

    def __init__(
        self,
        coordinator: Any,
        executions: Executions,
        batches: Batches,
        who_answers: Callable[[], str],
        *,
        in_order: bool,
        runs_again: bool,
    ):
        self._coordinator = coordinator
        self._executions = executions
        self._batches = batches
        self._who_answers = who_answers
        self._silence = Silence(who_answers)
        self._in_order = in_order
        # An execution whose numbers were lost must not run again if it has updated
        # variables.
        self._runs_again = runs_again
        self._cancellation = Cancellation(coordinator)
        self._numbers = itertools.count()
        self._next = 0
        self._arrived: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
        self._early: dict[int, Result] = {}
        # How many executions failed for which TensorFlow takes a worker for lost. Each
        # thread of a worker only adds to it.
        self._num_losses = 0
        self._departures = Departures.of(coordinator)
        # Whether an execution failed for good. No other one begins then.
        self._has_failed = False

    def schedule(self, scheduled: Scheduled) -> None:
        """Schedules an execution."""
        number = next(self._numbers)
        runs = itertools.count(1)

        def run(*args: Any) -> None:
            if self._has_failed:
                return
            self._see_off(worker_index())
            if next(runs) > 1:
                logging.warning(
                    "fit: an execution of up to %d steps runs again, on worker %d.",
                    scheduled.size,
                    worker_index(),
                )
            is_last = False
            while not is_last:
                result = self._result(scheduled.size, args)
                self._arrived.put((number, result))
                is_last = result.is_last

        schedule(self._coordinator, run, scheduled.args)

    def popleft_within(self, secs: float) -> Result | None:
        """Removes and returns the first result; None if none arrives in that time.

        Raises Exception: an execution failed, or whatever else the coordinator runs.
        """
        try:
            while not (self._in_order and self._next in self._early):
                number, result = self._arrived.get(timeout=secs)
                if not self._in_order:
                    break
                self._early[number] = result
        except queue.Empty:
            self._coordinator.done()  # It raises the error of a closure.
            self._silence.add(secs)
            return None
        self._silence.end()
        if self._in_order:
            result = self._early.pop(self._next)
            self._next += 1
        return result

    def _result(self, size: int, args: tuple[Any, ...]) -> Result:
        """Runs an execution, on the thread of a worker."""
        worker, num_losses = worker_index(), self._num_losses
        try:
            num_steps, args = self._batches.due(size, args, self._cancellation.of)
            if num_steps == 0:
                self._departures.note_end(worker)
                return Result(worker, has_ended=True)
            execution = self._executions.traced(num_steps)
            if execution is None:
                return Result(worker, untraced=num_steps)
            function = self._cancellation.of(execution.traced)
            numbers, others = function(*args)
        except tf.errors.OpError as error:
            self._has_failed = True
            if isinstance(error, tf.errors.CancelledError):
                self._check_loss(error, worker, num_losses)
            if may_be_lost(error):
                self._has_failed = False
                self._num_losses += 1
                self._departures.note_loss(worker)
            raise
        # The execution is over: a call returns when all its tasks have ended.
        fetched = None
        try:
            fetched = execution.fetched(numbers, others)
        except tf.errors.OpError as error:
            if self._runs_again or not may_be_lost(error):
                raise
            logging.warning(
                "fit: loss and metrics of %d steps are not in what is reported: worker "
                "%d was lost when they had trained, before their numbers were read.",
                num_steps,
                worker,
            )
        if fetched is not None and execution.has_notice(fetched):
            self._departures.note_notice(worker, self._batches.let_leave)
        has_more = self._batches.note_done(num_steps)
        return Result(worker, num_steps, execution, fetched, is_last=not has_more)

    def _see_off(self, worker: int) -> None:
        """Begins nothing on a worker that has notice, and waits until it has left.

        Raises UnavailableError, for which the coordinator gives the execution to
        another worker, and takes this one in again when it is back.
        """
        if not self._departures.see_off(worker, lambda: self._has_failed):
            return
        self._num_losses += 1
        logging.warning("fit: worker %d had notice, and has left.", worker)
        with contextlib.suppress(tf.errors.OpError):  # A server may be lost as well.
            self._batches.note_left(worker)
        raise tf.errors.UnavailableError(
            None, None, f"/job:worker/replica:0/task:{worker} has left."
        )

    def _check_loss(
        self, error: tf.errors.CancelledError, worker: int, num_losses: int
    ) -> None:
        """Raises if a cancellation follows from an error that TensorFlow has not told.

        A function over several tasks may end in the cancellation of what waited for the
        op that failed, instead of that op's error. TensorFlow takes any cancellation
        for a lost connection, and runs the closure again.
        """
        if self._cancellation.has_begun() or self._num_losses > num_losses:
            return  # It follows from the error of another closure, or from a lost task.
        try:
            # On the worker; a function that does nothing there would be constant.
            tf.raw_ops.Fill(dims=[1], value=0.0).numpy()
        except tf.errors.OpError:
            return
        raise StepCancelledError(
            f"A step on /job:worker/task:{worker} was cancelled, though no task was "
            "lost: one of its ops failed, and TensorFlow tells only what it cancelled "
            "for it. The log of that worker, or of a server, has the op's error, for "
            f'example behind "aborting with status". {self._who_answers()} TensorFlow '
            f"reported: {error.message}"
        ) from error
