"""The queue runner of SyncReplicasOptimizer's chief."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.sync.session_loop import SessionLoop, try_to_run
from tf_syncrep.python.train.sync_replicas import client
from tf_syncrep.python.train.sync_replicas.departures import Departures

_STOP_AGAIN_SECS = 0.1


class ChiefQueueRunner(SessionLoop):
    """Applies the gradients of each step, in a thread of the chief.

    Scripts of the oldest API know neither hooks nor `chief_init_op`: they start this
    queue runner and expect training to begin. So it opens the gate in a session that
    has not done so itself.

    Where its coordinator stops it ends the training, too, but not where an error has
    stopped it: this chief may be started again. That its session is closed is neither;
    the end of the process then ends the training.
    """

    def __init__(
        self,
        *,
        permit,
        open_op,
        stop_op,
        fail_op,
        departures: Departures,
        **arguments: Any,
    ):
        """Creates it.

        Args:
            permit: reads a local variable that `open_op` sets, to the generation, the
                round, and the number of this client. On a server that outlives its
                clients it may be what another one has set.
            open_op: begins the training.
            stop_op: ends the wait for gradients.
            fail_op: ends this client's wait for an update, since none will come.
            departures: by which the training is ended without its session.
            **arguments: for the base class.
        """
        super().__init__(title="SyncReplicas' chief", **arguments)
        self._permit = permit
        self._open_op = open_op
        self._stop_op = stop_op
        self._fail_op = fail_op
        self._departures = departures
        self._generation = 0  # The last one in which it ran.
        self._requests: list[_Request] = []  # guarded by the condition

    def between_updates(self, function: Callable[[], None]) -> None:
        """Has a function called when no update is under way.

        Waits for the end of the update that comes next, or of the runner.

        Args:
            function: what to call, in the runner's thread; in this one if none runs.
        """
        request = _Request(function)
        with self._condition:
            if self._sessions:
                self._requests.append(request)
            else:
                request.is_done.set()
                function()
                return
        request.is_done.wait()
        if request.error is not None:
            raise request.error

    def begin(self, session):
        """Opens the gate if that is still to be done."""
        self._generation = self._open(session)
        self._departures.has_opened(
            session, self._generation, lambda: self._end_updates(session)
        )

    def loop(self, session, coord):
        """Applies one round after the other, until the gate is closed."""
        update = session.make_callable(self.enqueue_ops[0])
        while coord is None or not coord.should_stop():
            update()
            self._serve()

    def stop(self, session, coord):
        """Ends the wait for gradients."""
        if _has_failed(coord) or self.cancel_op is self._stop_op:
            try_to_run(session, self._stop_op)
        elif try_to_run(session, self.cancel_op):
            self._departures.are_said(session)
        else:
            self._departures.close_gate(session)

    def has_failed(self, session):
        """Ends this client's wait for an update."""
        try_to_run(session, self._fail_op)

    def has_ended(self, session):
        """Ends the waits for what was to be called between two updates."""
        with self._condition:
            super().has_ended(session)
            requests, self._requests = self._requests, []
        for request in requests:
            request.error = tf.errors.CancelledError(
                None, None, "The chief's part ended before its next update."
            )
            request.is_done.set()

    def _open(self, session: Any) -> int:
        """Opens the gate unless this session has; returns the generation."""
        try:
            generation, _, opened_by = session.run(self._permit)
        except tf.errors.FailedPreconditionError:  # It is not initialized.
            generation = opened_by = 0
        if opened_by != client.number() or generation == self._generation:
            session.run(self._open_op)
            generation, *_ = session.run(self._permit)
        return int(generation)

    def _end_updates(self, session: Any) -> None:
        """Ends the wait for gradients; returns when the thread runs nothing more."""
        # Again, as it may have come between two waits.
        while not self.wait_for_end(_STOP_AGAIN_SECS):
            try_to_run(session, self._stop_op)

    def _serve(self) -> None:
        """Calls what is to be called between two updates."""
        with self._condition:
            requests, self._requests = self._requests, []
        for request in requests:
            try:
                request.function()
            except BaseException as error:
                request.error = error
            request.is_done.set()


class _Request:
    """A function to be called between two updates."""

    def __init__(self, function: Callable[[], None]):
        self.function = function
        self.error: BaseException | None = None
        self.is_done = threading.Event()


def _has_failed(coord: Any) -> bool:
    """Whether an error has stopped a coordinator, and not an end."""
    try:
        coord.raise_requested_exception()
    except Exception:
        return True
    return False
