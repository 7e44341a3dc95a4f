"""Waiting for what happens in other threads and processes, with a deadline."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import output_lines

T = TypeVar("T")


def until(
    condition: Callable[[], T],
    told: Callable[[], Any] = lambda: "the condition did not come about",
    secs: float = output_lines.DEADLINE_SECS,
    poll_secs: float = 0.01,
) -> T:
    """Waits until a condition holds, and returns what it is then.

    An error says `told()` if it does not hold in time.
    """
    deadline = time.monotonic() + secs
    while not (found := condition()):
        assert time.monotonic() < deadline, told()
        time.sleep(poll_secs)
    return found


def in_thread(function: Callable[..., T], *args: Any, **options: Any) -> "Future[T]":
    """Calls a function in a thread; `result(secs)` returns its result or raises."""
    called: Future[T] = Future()

    def call():
        try:
            called.set_result(function(*args, **options))
        except BaseException as error:
            called.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return called
