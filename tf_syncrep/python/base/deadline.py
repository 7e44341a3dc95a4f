"""Calls that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def within(
    secs: float, function: Callable[..., Any], *args: Any
) -> BaseException | None:
    """Calls a function in a daemon thread, and goes on without it after a while.

    TensorFlow may wait for servers that are gone, whatever the deadline of a session
    is. Returns the error with which the function failed, a TimeoutError if it still
    runs, or None.
    """
    errors: list[BaseException] = [TimeoutError(f"No answer in {secs:.1f} s")]

    def call() -> None:
        try:
            function(*args)
            errors.clear()
        except Exception as error:
            errors[:] = [error]

    thread = threading.Thread(target=call, name="tf_syncrep_call", daemon=True)
    thread.start()
    thread.join(secs)
    return errors[0] if errors else None
