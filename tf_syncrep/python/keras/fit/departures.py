"""Workers that have notice, until they have left."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import notice_ops

# How long a worker with notice goes on with the data that it has begun; how long it may
# take to leave after that, and how often it is asked.
_READ_ON_SECS, _LEAVE_SECS, _ASK_SECS = 10.0, 15.0, 0.1

_of_clusters: weakref.WeakKeyDictionary[Any, Departures] = weakref.WeakKeyDictionary()


class Departures:
    """Which workers of a cluster have notice, whatever it is that they run.

    An epoch, or a training, may have no other execution for a worker after the one that
    told of its notice. Each thread of a worker reads and writes its own worker alone.
    """

    def __init__(self):
        # By when they are to have read what they have begun.
        self._reading_on: dict[int, float] = {}
        self._leaving: set[int] = set()

    @classmethod
    def of(cls, coordinator: Any) -> Departures:
        """Returns those of a coordinator's cluster."""
        return _of_clusters.setdefault(coordinator, cls())

    def note_notice(self, worker: int, reads_on: Callable[[int], bool]) -> None:
        """Takes note that a worker has notice.

        `reads_on`: gives the worker no more data, and returns whether it comes to an
        end of what it has.
        """
        now = time.monotonic()
        until = self._reading_on.setdefault(worker, now + _READ_ON_SECS)
        if not reads_on(worker) or now > until:
            self._leaving.add(worker)

    def note_end(self, worker: int) -> None:
        """Takes note that a worker has read what it has begun."""
        if worker in self._reading_on:
            self._leaving.add(worker)

    def note_loss(self, worker: int) -> None:
        """Takes note that a worker may be lost, and another one in its place."""
        self._leaving.discard(worker)
        self._reading_on.pop(worker, None)

    def see_off(self, worker: int, gives_up: Callable[[], bool]) -> bool:
        """Waits until a worker that is to leave has left; returns whether it has.

        Called on the thread of the worker. It has not left if it takes too long, or if
        another process has taken its place.
        """
        if worker not in self._leaving:
            return False
        try:
            end = time.monotonic() + _LEAVE_SECS
            while not gives_up() and time.monotonic() < end:
                if not notice_ops.had_notice().numpy():
                    return False
                time.sleep(_ASK_SECS)
        except tf.errors.OpError:
            return True
        finally:
            self.note_loss(worker)
        return False
