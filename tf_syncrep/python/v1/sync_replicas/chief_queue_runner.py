"""The queue runner of SyncReplicasOptimizer's chief."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.request import Request
from tf_syncrep.python.base.session_loop import SessionLoop, try_to_run
from tf_syncrep.python.v1.sync_replicas import client
from tf_syncrep.python.v1.sync_replicas.departures import Departures

_STOP_AGAIN_SECS = 0.1


class ChiefQueueRunner(SessionLoop):
    """Applies the gradients of each step, in a thread of the chief.

    Scripts of the oldest API use neither hooks nor `chief_init_op`: they start this
    queue runner and expect training to begin. So it opens the gate in sessions that
    have not done so themselves.

    When its coordinator stops, it also ends the training, unless an error has stopped
    the coordinator: then this chief may be started again. The training does not end
    either when its session is closed; it ends with the process then.
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

        `fail_op`: ends this client's wait for an update, since no update will come.
        """
        super().__init__(title="SyncReplicas' chief", **arguments)
        self._permit = permit
        self._open_op = open_op
        self._stop_op = stop_op
        self._fail_op = fail_op
        self._departures = departures
        self._generation = 0  # the last generation in which it ran
        # Guarded by the condition.
        self._requests: list[Request[None]] = []

    def between_updates(self, function: Callable[[], None]) -> None:
        """Calls a function at the end of the next update, in the runner's thread.

        If the runner does not run, it is called at once, in this thread.
        """
        request = Request(function)
        with self._condition:
            if self._sessions:
                self._requests.append(request)
            else:
                request.serve()
        request.result()

    def begin(self, session):
        """Opens the gate unless it is open."""
        self._generation = self._open(session)
        self._departures.note_opened(
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
            self._departures.note_told(session)
        else:
            self._departures.close_gate(session)

    def on_failure(self, session):
        """Ends this client's wait for an update."""
        try_to_run(session, self._fail_op)

    def on_end(self, session):
        """Ends the waits of functions that were to be called between two updates."""
        with self._condition:
            super().on_end(session)
            requests, self._requests = self._requests, []
        for request in requests:
            request.set_exception(
                tf.errors.CancelledError(
                    None, None, "The chief's part ended before its next update."
                )
            )

    def _open(self, session: Any) -> int:
        """Opens the gate unless this session has opened it; returns the generation."""
        try:
            generation, _, opened_by = session.run(self._permit)
        except tf.errors.FailedPreconditionError:  # the variable is not initialized
            generation = opened_by = 0
        if opened_by != client.number() or generation == self._generation:
            session.run(self._open_op)
            generation, *_ = session.run(self._permit)
        return int(generation)

    def _end_updates(self, session: Any) -> None:
        """Ends the wait for gradients; returns when the thread has stopped."""
        # It is repeated, since one call may come between two waits.
        while not self.wait_for_end(_STOP_AGAIN_SECS):
            try_to_run(session, self._stop_op)

    def _serve(self) -> None:
        """Calls the functions that are to be called between two updates."""
        with self._condition:
            requests, self._requests = self._requests, []
        for request in requests:
            request.serve()


def _has_failed(coord: Any) -> bool:
    """Returns whether a coordinator was stopped by an error, not by the end."""
    try:
        coord.raise_requested_exception()
    except Exception:
        return True
    return False
