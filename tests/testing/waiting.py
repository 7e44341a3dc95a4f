"""Waiting for what happens in other threads and processes, with a deadline."""

import time
from collections.abc import Callable
from typing import Any

import output_lines


def until(
    condition: Callable[[], Any],
    told: Callable[[], Any] = lambda: "the condition did not come about",
    secs: float = output_lines.DEADLINE_SECS,
    poll_secs: float = 0.01,
) -> None:
    """Waits until a condition holds; an error says `told()` if it does not in time."""
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(poll_secs)
