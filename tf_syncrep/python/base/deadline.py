"""Calls that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def within(
    secs: float, function: Callable[..., Any], *args: Any
) -> BaseException | None:
    """Calls a function that may never return, and goes on without it after a while.

    TensorFlow may wait for servers that are gone, whatever the deadline of a session
    is.

    `function`: the function; it is called in a daemon thread. Returns the error with
    which it failed, or None. It is a TimeoutError if the function still runs.
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
