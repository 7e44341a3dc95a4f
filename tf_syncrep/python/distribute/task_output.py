"""What a task writes, read until a while after its end."""

import fcntl
import io
import os
import select
import time
from typing import Any

# How long the output of a task is still read after its end. A grandchild that holds the
# output open may write for ever.
_LAST_LINES_SECS = 0.5
# Linux's terminals hold less.
_MOST_TERMINAL_BYTES = 1 << 17


class TaskOutput(io.RawIOBase):
    """The output of a task as a file that ends a while after the task.

    What the task itself has written is read to its last byte, however long the reader
    of this file takes for it: only waiting for more counts against the while.
    """

    def __init__(self, descriptor: int, ended: int):
        self._descriptor = descriptor
        self._ended = ended
        self._has_ended = False
        self._held_bytes = 0  # after its end: how much more it may have written itself
        self._deadline: float | None = None

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads once; returns 0 at the end."""
        if not self._wait():
            return 0
        try:
            data = os.read(self._descriptor, len(buffer))
        except OSError:  # EIO: nobody has the terminal's other end open
            return 0
        if self._has_ended:
            self._held_bytes -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def _wait(self) -> bool:
        """Waits until there is something to read; returns False when it is too late."""
        if not self._has_ended:
            ready = _readable([self._descriptor, self._ended], None)
            if self._ended not in ready:
                return True
            self._has_ended = True
            self._held_bytes = _capacity(self._descriptor)
        if self._held_bytes > 0 and _readable([self._descriptor], 0.0):
            return True
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + _LAST_LINES_SECS
        left = self._deadline - now
        return left > 0 and bool(_readable([self._descriptor], left))


def _capacity(descriptor: int) -> int:
    """Returns how many bytes a pipe or a terminal can hold."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except OSError:  # it is a terminal
        return _MOST_TERMINAL_BYTES


def _readable(descriptors: list[int], timeout_secs: float | None) -> list[int]:
    """Waits until one of some descriptors has data or has ended; returns those."""
    poll = select.poll()  # select() takes no descriptor above 1023
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    timeout = None if timeout_secs is None else timeout_secs * 1000
    return [descriptor for descriptor, _ in poll.poll(timeout)]
