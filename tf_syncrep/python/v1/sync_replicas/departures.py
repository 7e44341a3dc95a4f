"""Tells the gate when a session is closed, or its process ends.

Only scripts with the session hook have a place where a replica leaves. A Supervisor's
sessions have none, and neither have replicas if only the chief has the hook. So this
module notices when sessions of graphs with a `SyncReplicasOptimizer` are made and
closed. It tells the gate in another session, since the first one may be closed, or
broken.

- A session is closed: the replica leaves, unless another session of it goes on
  training.
- The process ends, by its last line, by `sys.exit` or by an exception: sessions that
  are still open count as closed.
- The chief's process ends without an exception: it closes the gate, if that is still
  open. A chief that fails may be started again, and its replicas wait for that.

A process that is killed, or ends by `os._exit`, tells nothing.
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

from tf_syncrep.python.base.deadline import within
from tf_syncrep.python.ops import sync_gate_ops

# The end of a process must not take longer because a server is gone.
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
        """Notices the sessions of a graph from now on, and keeps no reference to it."""
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
            # Other tasks are left out, since they may be gone. The task of the
            # session's target is always included: if the gate is on that one, any name
            # will do.
            device_filters=[f"/job:{spec.job or 'none'}/task:{spec.task or 0}"],
            operation_timeout_in_ms=int(_DEADLINE_SECS * 1000),
        )
        self._stays: dict[str, _Stay] = {}
        with _lock:
            _watch(graph, self)

    def note_opened(
        self, session: Any, generation: int, end_updates: Callable[[], None]
    ) -> None:
        """Notes that this process is the chief's."""
        with _lock:
            stay = self.stay_of(session)
            stay.generation = generation
            stay.end_updates = end_updates
            stay.set_due(True)

    def note_told(self, session: Any) -> None:
        """Notes that the session itself has left or closed the gate."""
        with _lock:
            stay = self.stay_of(session)
            stay.generation = None
            stay.set_due(False)

    def close_gate(self, session: Any) -> None:
        """Ends the training that the chief has opened in a session, now closed."""
        with _lock:
            stay = self.stay_of(session)
        within(_DEADLINE_SECS, stay.end, False)

    def leave(self, target: str) -> None:
        """Leaves the gate, if the gate has ever heard of this replica.

        Otherwise the replica has only checked whether the model is ready, and may still
        come to train. A replica that may train again does not leave late either.
        """
        deadline = time.monotonic() + _DEADLINE_SECS

        def say(session):
            device, devices = session.run([self._device, self._devices])
            if device in devices and time.monotonic() < deadline:
                session.run(self._leave_op)

        self._tell(target, say)

    def close(self, target: str, generation: int) -> None:
        """Ends the training of all replicas."""
        feed = {self._generation: generation}
        self._tell(target, lambda session: session.run(self._close_op, feed))

    def stay_of(self, session: Any) -> _Stay:
        """Returns the stay of this replica at a session's server. Needs the lock."""
        target = tf.compat.as_text(session.sess_str or "")
        return self._stays.setdefault(target, _Stay(self, target))

    def _tell(self, target: str, say: Callable[[Any], Any]) -> None:
        """Tells the gate something, in a session of its own."""
        try:
            session = tf.compat.v1.Session(target, self._graph, self._config)
            try:
                say(session)
            finally:
                session.close()
        except Exception as error:  # An end must not fail because servers are gone.
            logging.warning(
                "SyncReplicas: the gate was not told that this replica has ended: %s",
                error,
            )


@dataclasses.dataclass(eq=False)
class _Stay:
    """A replica that trains, or has trained, through one server.

    `sessions`: the open sessions, by `id`, since a session may be closed by its
    finalizer. `generation`: the generation that the chief has opened; None if this is
    no chief.
    """

    departures: Departures
    target: str
    sessions: set[int] = dataclasses.field(default_factory=set)
    generation: int | None = None
    end_updates: Callable[[], None] | None = None

    def set_due(self, is_due: bool) -> None:
        """Notes whether the gate may have to be told something. Needs the lock."""
        # without a target the gate disappears with the session
        if is_due and self.target:
            _due.add(self)
        else:
            _due.discard(self)

    def session_ends(self, number: int, is_failure: bool) -> None:
        """Notes that a session was closed, and leaves if it was the last one."""
        with _lock:
            self.sessions.discard(number)
            # After an error the owner of the session may go on training, or end the
            # process.
            if is_failure or self.sessions or self not in _due:
                return
            # A chief's process still has to end the training.
            self.set_due(self.generation is not None)
        within(_DEADLINE_SECS, self.departures.leave, self.target)

    def end(self, is_failure: bool) -> None:
        """Closes or leaves the gate, at the end of the process or of the training."""
        with _lock:
            is_due = self in _due
            generation, self.generation = self.generation, None
            end_updates, self.end_updates = self.end_updates, None
            self.set_due(False)
        if is_due and generation is not None and not is_failure:
            self.departures.close(self.target, generation)
        elif is_due:
            self.departures.leave(self.target)
        # If a thread returns from TensorFlow while the interpreter ends, the process is
        # aborted, and the calls above may have ended the thread's wait there.
        if is_due and end_updates is not None:
            end_updates()


# Guards all mutable state here. The garbage collector closes sessions in any thread,
# also in one that holds the lock. That thread waits for another one's session, which
# tells the gate: sessions of graphs that are not watched are made and closed without.
_lock = threading.RLock()
_of_graph: weakref.WeakKeyDictionary[tf.Graph, list[Departures]] = (
    weakref.WeakKeyDictionary()
)
_stays_of_session: dict[int, list[_Stay]] = {}  # of open sessions, by `id`
_due: set[_Stay] = set()
_watching_pid: int | None = None

_process_is_ending = threading.Event()
_all_is_said = threading.Event()


def _watch(graph: tf.Graph, departures: Departures) -> None:
    global _watching_pid
    _of_graph.setdefault(graph, []).append(departures)
    if _watching_pid is None:
        for kind in (tf.compat.v1.Session, tf.compat.v1.InteractiveSession):
            _notice_sessions(kind)
        atexit.register(_process_ends)
    if _watching_pid != os.getpid():
        _watching_pid = os.getpid()
        _due.clear()  # these were the parent's
        _stays_of_session.clear()
        # It is started at the beginning: from Python 3.12 on, no thread can be started
        # at the end.
        threading.Thread(target=_say_at_the_end, daemon=True).start()


def _notice_sessions(kind: Any) -> None:
    """Makes sessions of a class tell when they are made, and when they are closed."""
    init, close = kind.__init__, kind.close

    @functools.wraps(init)
    def noticed_init(self, *args, **kwargs):
        init(self, *args, **kwargs)
        watching = _of_graph.get(self.graph)
        if watching is None:
            return
        with _lock:
            for departures in watching:
                stay = departures.stay_of(self)
                stay.sessions.add(id(self))
                stay.set_due(True)
                _stays_of_session.setdefault(id(self), []).append(stay)

    @functools.wraps(close)
    def noticed_close(self):
        try:
            close(self)
        finally:
            stays = _stays_of_session.pop(id(self), [])
            is_failure = sys.exc_info()[0] is not None
            for stay in stays:
                stay.session_ends(id(self), is_failure)

    kind.__init__, kind.close = noticed_init, noticed_close


def _process_ends() -> None:
    if _watching_pid == os.getpid():  # not in a child process, whose parent trains
        _process_is_ending.set()
        _all_is_said.wait(_DEADLINE_SECS)


def _say_at_the_end() -> None:
    _process_is_ending.wait()
    with _lock:
        due = list(_due)
    for stay in due:
        # The interpreter notes an exception that nobody has caught.
        stay.end(is_failure=getattr(sys, "last_value", None) is not None)
    _all_is_said.set()
