"""A queue runner of `tf.compat.v1` that ends with its session."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1 import logging


class SessionLoop(tf.compat.v1.train.QueueRunner):
    """Runs a loop in a thread of each session.

    TensorFlow's own class takes it for an error when its session is closed.
    """

    def __init__(self, *, title: str, **arguments: Any):
        super().__init__(**arguments)
        self._title = title
        self._errors: list[Exception] = []
        self._condition = threading.Condition()  # guards the sessions
        self._sessions: list[Any] = []  # the sessions in which it runs

    def begin(self, session: Any) -> None:
        """Called before there are threads."""

    def loop(self, session: Any, coord: Any) -> None:
        """Runs until the coordinator stops, if there is one, or an error is raised."""
        raise NotImplementedError

    def stop(self, session: Any, coord: Any) -> None:
        """Called when the coordinator has stopped; has to end the loop's waits."""
        del coord
        try_to_run(session, self.cancel_op)

    def on_failure(self, session: Any) -> None:
        """Called after an error of the loop was reported."""

    def on_end(self, session: Any) -> None:
        """Called when the loop no longer runs in a session."""
        with self._condition:
            self._sessions.remove(session)
            self._condition.notify_all()

    def wait_for_end(self, timeout_secs: float | None = None) -> bool:
        """Waits until it runs in no session; returns whether it is so."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._sessions, timeout_secs)

    def create_threads(self, sess, coord=None, daemon=False, start=False):
        """Creates threads, as the base class does, unless they are running already."""
        with self._condition:
            if sess in self._sessions:
                return []
            self._sessions.append(sess)
        try:
            self.begin(sess)
        except BaseException:
            self.on_end(sess)
            raise
        self._errors = []
        threads = [threading.Thread(target=self._run_loop, args=(sess, coord))]
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
        """The errors that ended threads without a coordinator."""
        return self._errors

    def _run_loop(self, session: Any, coord: Any) -> None:
        try:
            try:
                self.loop(session, coord)
            except self.queue_closed_exception_types:
                try_to_run(session, self.close_op)
        except Exception as error:
            if _is_closed(session):
                return
            if coord is None:
                logging.error("%s ended: %s", self._title, error)
                self._errors.append(error)
            else:
                coord.request_stop(error)
            # This comes after the report, since threads whose waits end ask the
            # coordinator for the error.
            self.on_failure(session)
            if coord is None:
                raise
        finally:
            self.on_end(session)

    def _await_stop(self, session: Any, coord: Any) -> None:
        coord.wait_for_stop()
        self.stop(session, coord)


def try_to_run(session: Any, op: Any) -> bool:
    """Runs an op at the end of a loop, which may fail because the session is gone."""
    try:
        session.run(op)
    except Exception as error:
        logging.debug("At the end of a queue runner's loop: %s", error)
        return False
    return True


def _is_closed(session: Any) -> bool:
    """Returns whether its owner has closed a session, so that nothing can run in it."""
    try:
        session.run([])
    except RuntimeError:
        return True
    return False
