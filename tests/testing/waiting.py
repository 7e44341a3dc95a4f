"""Waits for what other threads bring about."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], deadline_secs: float = 60.0) -> None:
    """Waits until a condition holds, which is an error after the deadline."""
    deadline = time.monotonic() + deadline_secs
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.005)
