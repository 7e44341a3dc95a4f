"""A lock that many may share, or one may have alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class SharedLock:
    """Requests share it; whoever changes the model has it alone.

    Whoever waits to have it alone comes before requests that begin later, so that there
    is an end to its wait.
    """

    def __init__(self):
        self._changed = threading.Condition()
        self._num_sharing = 0
        self._num_waiting = 0
        self._is_alone = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Holds the lock together with others."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._is_alone or self._num_waiting))
            self._num_sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_sharing -= 1
                if not self._num_sharing:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the lock alone."""
        with self._changed:
            self._num_waiting += 1
            try:
                self._changed.wait_for(
                    lambda: not (self._is_alone or self._num_sharing)
                )
            finally:
                self._num_waiting -= 1
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()
