"""Waits that say for what they wait."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tensorflow.compat.v1 import logging

# A wait of less is not worth a line: others come up a moment later.
_FIRST_SECS = 1.0
_SECS = 60.0


@contextlib.contextmanager
def said(describe: Callable[[], str | None]) -> Iterator[None]:
    """Logs a line soon after the beginning of a block, and every minute until its end.

    `describe`: returns the line, or None for none now. It is called in a thread of its
    own, and its errors are dropped: the wait has its own.
    """
    is_over = threading.Event()

    def say():
        secs = _FIRST_SECS
        while not is_over.wait(secs):
            with contextlib.suppress(Exception):
                line = describe()
                if line is not None and not is_over.is_set():
                    logging.warning("%s", line)
            secs = _SECS

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
