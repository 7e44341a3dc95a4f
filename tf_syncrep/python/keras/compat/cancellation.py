"""Function calls that a ClusterCoordinator's closures neither cancel nor suffer from.

A coordinator calls each closure under its cancellation manager, which TensorFlow keeps
in a global variable meanwhile (`_active_context` of `tensorflow.python.eager.
cancellation`, of the process, not of the thread). So a function that another thread
calls while closures run is under the same manager. If it fails, even if that is caught,
TensorFlow cancels everything under the manager: all closures, later ones too, whose
CancelledError ends the training. And the error of a closure cancels the function, in
the midst of what it does.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Private: nothing public calls a function under no cancellation manager.
from tensorflow.python.eager import cancellation  # pyright: ignore

_this_thread = threading.local()
_lock = threading.Lock()  # Guards the replacement, which is made once.
_manager_of_all_threads: Callable[[], Any] | None = None


@contextlib.contextmanager
def apart_from_closures() -> Iterator[None]:
    """While in it, what this thread calls is under no cancellation manager.

    The first call replaces what TensorFlow asks for the manager, for good, by a
    function that gives all other threads the same answer as before: until then, and in
    processes that never come here, TensorFlow is as it was.

    Yields:
        Nothing.
    """
    _replace()
    before = _is_apart()
    _this_thread.is_apart = True
    try:
        yield
    finally:
        _this_thread.is_apart = before


def _is_apart() -> bool:
    return getattr(_this_thread, "is_apart", False)


def _manager():
    """What TensorFlow calls for the cancellation manager of a function call."""
    if _is_apart() or _manager_of_all_threads is None:
        return None
    return _manager_of_all_threads()


def _replace() -> None:
    global _manager_of_all_threads
    with _lock:
        if _manager_of_all_threads is None:
            _manager_of_all_threads = cancellation.context
            cancellation.context = _manager
