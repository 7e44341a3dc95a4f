"""What the gate is told when a session is closed, or its process ends.

Only a script with the session hook has a place where a replica leaves. Nobody tells us
about the sessions of a Supervisor, or of a replica if the chief alone has the hook. So
sessions of graphs with a `SyncReplicasOptimizer` are noticed here when they are made
and when they are closed. The gate is then told in another session, since theirs may be
closed, or broken.

- A session is closed: the replica leaves, unless another session trains on.
- The process ends, by its last line, by `sys.exit` or by an exception: the same for
  sessions that were not closed.
- The chief's process ends, and by no exception: it closes the gate, if that is still
  open. A chief that fails may be started again, and its replicas wait for that.

A process that is killed, or ends by `os._exit`, says nothing.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1 import logging

from tf_syncrep.python.ops import sync_gate_ops

# So that no end takes longer because a server is gone.
_DEADLINE_SECS = 5.0


class Departures:
    """Leaves or closes the gate of one optimizer, in sessions of its own."""

    def __init__(
        self,
        graph: tf.Graph,
        make_gate: Callable[[], tf.Tensor],
        make_worker: Callable[[], tuple[tf.Tensor, tf.Tensor]],
        gate_device: str,
        worker_device: str,
    ):
        """Notices the sessions of a graph from now on.

        Args:
            graph: the optimizer's; it is not kept.
            make_gate: makes the gate's handle anew, in another graph.
            make_worker: makes the replica's name and incarnation anew.
            gate_device: the gate's task.
            worker_device: the replica's task.
        """
        with tf.Graph().as_default() as self._graph:
            with tf.device(worker_device):
                worker = make_worker()
            with tf.device(gate_device):
                gate = make_gate()
                self._device = tf.identity(worker[0])
                self._devices = sync_gate_ops.sync_gate_stats(gate).devices
                self._leave_op = sync_gate_ops.sync_gate_leave(gate, *worker)
                self._generation = tf.compat.v1.placeholder(tf.int64, [])
                self._close_op = sync_gate_ops.sync_gate_close(gate, self._generation)
        spec = tf.DeviceSpec.from_string(gate_device)
        self._config = tf.compat.v1.ConfigProto(
            # Without the others, which may be gone. That of the session's own target is
            # always there: for a gate on that one, any other name will do.
            device_filters=[f"/job:{spec.job or 'none'}/task:{spec.task or 0}"],
            operation_timeout_in_ms=int(_DEADLINE_SECS * 1000),
        )
        self._stays: dict[str, _Stay] = {}
        with _lock:
            _watch(graph, self)

    def has_opened(
        self, session: Any, generation: int, end_updates: Callable[[], None]
    ) -> None:
        """Says that the process ends as the chief's.

        Args:
            session: the chief's session.
            generation: what it has opened.
            end_updates: ends what runs in the session, and waits for that.
        """
        with _lock:
            stay = self._stay(session)
            stay.generation = generation
            stay.end_updates = end_updates
            stay.set_due(True)

    def are_said(self, session: Any) -> None:
        """Says that the gate was left, or closed, by the session itself.

        Args:
            session: the session.
        """
        with _lock:
            stay = self._stay(session)
            stay.generation = None
            stay.set_due(False)

    def close_gate(self, session: Any) -> None:
        """Ends the training that the chief has opened in a session, which is closed.

        Args:
            session: the session.
        """
        with _lock:
            stay = self._stay(session)
        _in_time(lambda: stay.end(is_failure=False))

    def leave(self, target: str) -> None:
        """Leaves the gate, if it has ever heard of this replica.

        A replica that it has not heard of has only checked whether the model is ready,
        and may still come to train. Nor does a replica leave late that may train again.

        Args:
            target: the server through which the replica has trained.
        """
        deadline = time.monotonic() + _DEADLINE_SECS

        def say(session):
            device, devices = session.run([self._device, self._devices])
            if device in devices and time.monotonic() < deadline:
                session.run(self._leave_op)

        self._tell(target, say)

    def close(self, target: str, generation: int) -> None:
        """Ends the training of all.

        Args:
            target: the server through which the chief has trained.
            generation: what it has opened.
        """
        feed = {self._generation: generation}
        self._tell(target, lambda session: session.run(self._close_op, feed))

    def _stay(self, session: Any) -> _Stay:
        target = tf.compat.as_text(session.sess_str or "")
        return self._stays.setdefault(target, _Stay(self, target))

    def _tell(self, target: str, say: Callable[[Any], Any]) -> None:
        """Tells the gate something, in a session that is made for that."""
        try:
            session = tf.compat.v1.Session(target, self._graph, self._config)
            try:
                say(session)
            finally:
                session.close()
        except Exception as error:  # No end may fail because the servers are gone.
            logging.warning("SyncReplicas: the gate was not told of an end: %s", error)


@dataclasses.dataclass(eq=False)
class _Stay:
    """A replica that trains, or has trained, through one server.

    Attributes:
        departures: its optimizer's.
        target: the server's address, of which another session can be made.
        sessions: those that are open; by `id`, as one may be closed by its end.
        generation: what the chief has opened; None: this is no chief.
        end_updates: ends the chief's part, and waits for that.
    """

    departures: Departures
    target: str
    sessions: set[int] = dataclasses.field(default_factory=set)
    generation: int | None = None
    end_updates: Callable[[], None] | None = None

    def set_due(self, is_due: bool) -> None:
        """Says whether the gate may have to be told something; under the lock."""
        if is_due and self.target:  # Otherwise the gate disappears with the session.
            _due.add(self)
        else:
            _due.discard(self)

    def session_ends(self, number: int, is_failure: bool) -> None:
        """A session was closed: leaves, if it was the last one."""
        with _lock:
            self.sessions.discard(number)
            # Closed by an error, it is its owner's to train on, or to end the process.
            if is_failure or self.sessions or self not in _due:
                return
            # A chief's process has still to end the training.
            self.set_due(self.generation is not None)
        _in_time(lambda: self.departures.leave(self.target))

    def end(self, is_failure: bool) -> None:
        """Closes the gate, or leaves it, at the end of the process or the training."""
        with _lock:
            is_due = self in _due
            generation, self.generation = self.generation, None
            end_updates, self.end_updates = self.end_updates, None
            self.set_due(False)
        if is_due and generation is not None and not is_failure:
            self.departures.close(self.target, generation)
        elif is_due:
            self.departures.leave(self.target)
        # A thread that returns from TensorFlow while the interpreter ends aborts the
        # process, and what was said above may have ended the thread's wait there.
        if is_due and end_updates is not None:
            end_updates()


# Guards all that is mutable here. The garbage collection closes sessions, in whichever
# thread: in one that holds it, too.
_lock = threading.RLock()
_of_graph: weakref.WeakKeyDictionary[tf.Graph, list[Departures]] = (
    weakref.WeakKeyDictionary()
)
_stays_of_session: dict[int, list[_Stay]] = {}  # of open ones, by `id`
_due: set[_Stay] = set()
_watching_pid: int | None = None

_process_is_ending = threading.Event()
_all_is_said = threading.Event()


def _in_time(say: Callable[[], None]) -> None:
    """Has something said, in a thread: TensorFlow waits on for servers in its process.

    For those that are gone, that is, whatever a session's deadline is.
    """
    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    thread.join(_DEADLINE_SECS)


def _watch(graph: tf.Graph, departures: Departures) -> None:
    global _watching_pid
    _of_graph.setdefault(graph, []).append(departures)
    if _watching_pid is None:
        for kind in (tf.compat.v1.Session, tf.compat.v1.InteractiveSession):
            _notice_sessions(kind)
        atexit.register(_process_ends)
    if _watching_pid != os.getpid():
        _watching_pid = os.getpid()
        _due.clear()  # A parent's.
        _stays_of_session.clear()
        # From the beginning: from Python 3.12 on, none can be started at the end.
        threading.Thread(target=_say_at_the_end, daemon=True).start()


def _notice_sessions(kind: Any) -> None:
    """Has the sessions of a class tell when they are made, and closed."""
    init, close = kind.__init__, kind.close

    @functools.wraps(init)
    def noticed_init(self, *args, **kwargs):
        init(self, *args, **kwargs)
        with _lock:
            for departures in _of_graph.get(self.graph, ()):
                stay = departures._stay(self)
                stay.sessions.add(id(self))
                stay.set_due(True)
                _stays_of_session.setdefault(id(self), []).append(stay)

    @functools.wraps(close)
    def noticed_close(self):
        try:
            close(self)
        finally:
            with _lock:
                stays = _stays_of_session.pop(id(self), [])
            is_failure = sys.exc_info()[0] is not None
            for stay in stays:
                stay.session_ends(id(self), is_failure)

    kind.__init__, kind.close = noticed_init, noticed_close


def _process_ends() -> None:
    if _watching_pid == os.getpid():  # Not a child, whose parent trains.
        _process_is_ending.set()
        _all_is_said.wait(_DEADLINE_SECS)


def _say_at_the_end() -> None:
    _process_is_ending.wait()
    with _lock:
        due = list(_due)
    for stay in due:
        # The interpreter has noted an exception that nobody has caught.
        stay.end(is_failure=getattr(sys, "last_value", None) is not None)
    _all_is_said.set()
