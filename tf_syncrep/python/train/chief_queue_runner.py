"""The queue runner of SyncReplicasOptimizer's chief."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1 import logging

from tf_syncrep.python.train import client
from tf_syncrep.python.train.departures import Departures


class ChiefQueueRunner(tf.compat.v1.train.QueueRunner):
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
        super().__init__(**arguments)
        self._permit = permit
        self._open_op = open_op
        self._stop_op = stop_op
        self._fail_op = fail_op
        self._departures = departures
        self._generation = 0  # The last one in which it ran.
        self._errors: list[Exception] = []
        self._condition = threading.Condition()  # guards the two below
        self._sessions: list[Any] = []  # in which it runs
        self._requests: list[_Request] = []

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

    def wait_for_end(self) -> None:
        """Waits until it runs in no session: until its gates are closed, that is."""
        with self._condition:
            self._condition.wait_for(lambda: not self._sessions)

    def create_threads(self, sess, coord=None, daemon=False, start=False):
        """Opens the gate if that is still to be done, then does as the base class.

        Args:
            sess: a session whose global variables are initialized.
            coord: a coordinator, to whom errors are reported.
            daemon: whether the process may end before the threads.
            start: whether to start the threads.

        Returns:
            The threads.
        """
        with self._condition:
            if sess in self._sessions:
                return []
            self._sessions.append(sess)
        try:
            self._generation = self._open(sess)
        except BaseException:
            self._end(sess)
            raise
        self._departures.has_opened(sess, self._generation)
        self._errors = []
        threads = [threading.Thread(target=self._apply_rounds, args=(sess, coord))]
        if coord is not None:
            threads.append(
                threading.Thread(target=self._await_stop, args=(sess, coord))
            )
        for thread in threads:
            thread.daemon = daemon
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    @property
    def exceptions_raised(self):
        """What ended its threads where no coordinator was told."""
        return self._errors

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

    def _apply_rounds(self, session: Any, coord: Any) -> None:
        """Applies one round after the other, until the gate is closed."""
        try:
            # Not the base class' loop, which has no place between two updates.
            update = session.make_callable(self.enqueue_ops[0])
            while coord is None or not coord.should_stop():
                try:
                    update()
                except self.queue_closed_exception_types:
                    _try_to_run(session, self.close_op)
                    return
                self._serve()
        except Exception as error:
            if _is_closed(session):
                return
            if coord is None:
                logging.error("SyncReplicas' chief ended: %s", error)
                self._errors.append(error)
            else:
                coord.request_stop(error)
            # Only now: whose wait ends asks its coordinator for the reason.
            _try_to_run(session, self._fail_op)
            if coord is None:
                raise
        finally:
            self._end(session)

    def _await_stop(self, session: Any, coord: Any) -> None:
        """Ends the wait for gradients when the coordinator stops."""
        coord.wait_for_stop()
        if _has_failed(coord) or self.cancel_op is self._stop_op:
            _try_to_run(session, self._stop_op)
        elif _try_to_run(session, self.cancel_op):
            self._departures.are_said(session)
        else:
            self._departures.close_gate(session)

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

    def _end(self, session: Any) -> None:
        with self._condition:
            self._sessions.remove(session)
            requests, self._requests = self._requests, []
            self._condition.notify_all()
        for request in requests:
            request.error = tf.errors.CancelledError(
                None, None, "The chief's part ended before its next update."
            )
            request.is_done.set()


class _Request:
    """A function to be called between two updates."""

    def __init__(self, function: Callable[[], None]):
        self.function = function
        self.error: BaseException | None = None
        self.is_done = threading.Event()


def _is_closed(session: Any) -> bool:
    """Whether its owner has closed a session, in which nothing is run then."""
    try:
        session.run([])
    except RuntimeError:
        return True
    return False


def _has_failed(coord: Any) -> bool:
    """Whether an error has stopped a coordinator, and not an end."""
    try:
        coord.raise_requested_exception()
    except Exception:
        return True
    return False


def _try_to_run(session: Any, op: Any) -> bool:
    try:
        session.run(op)
    except Exception as error:  # the session may be no more
        logging.debug("SyncReplicas' chief, at its end: %s", error)
        return False
    return True
