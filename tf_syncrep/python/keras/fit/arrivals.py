"""Results of scheduled executions, in the order in which they arrive."""

from __future__ import annotations

import queue
import threading
from typing import Any

from tf_syncrep.python.keras.fit.silence import Silence

# A wait for a result is interrupted this often, to say how long it has lasted.
_WAIT_SECS = 1.0


class Arrivals:
    """A queue of results, from which the first one to arrive is taken first.

    With a capacity of one they arrive in the order in which they were added.

    TensorFlow announces a result only to those who wait for it. So a thread waits for
    each result. A thread ends when its result has arrived and the queue is closed, and
    it does not keep the process alive.
    """

    def __init__(self, capacity: int, silence: Silence):
        """Makes an empty queue.

        Args:
            capacity: how many results may be waited for at once.
            silence: is told how long results are waited for.
        """
        self._silence = silence
        self._awaited: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._capacity = capacity
        self._num_threads = 0
        self._size = 0

    def __len__(self) -> int:
        """Returns how many results are in the queue, arrived or not."""
        return self._size

    def append(self, item: tuple[int, Any]) -> None:
        """Adds a number and a result, whose `wait` returns when it has arrived."""
        self._size += 1
        self._awaited.put(item)
        if self._num_threads < min(self._size, self._capacity):
            self._num_threads += 1
            threading.Thread(
                target=self._wait, name=f"fit_arrivals_{self._num_threads}", daemon=True
            ).start()

    def popleft(self) -> tuple[int, Any]:
        """Waits until a result has arrived, and removes it."""
        while (item := self.popleft_within(_WAIT_SECS)) is None:
            pass
        return item

    def popleft_within(self, secs: float) -> tuple[int, Any] | None:
        """Does the same as `popleft`, but returns None if none arrives in that time."""
        try:
            item = self._arrived.get(timeout=secs)
        except queue.Empty:
            self._silence.add(secs)
            return None
        self._silence.end()
        self._size -= 1
        return item

    def close(self) -> None:
        """Makes the threads end."""
        for _ in range(self._num_threads):
            self._awaited.put(None)

    def _wait(self) -> None:
        while (item := self._awaited.get()) is not None:
            item[1].wait()
            self._arrived.put(item)
