"""Function calls that are independent of the cancellation of a coordinator's closures.

A ClusterCoordinator calls each closure under its cancellation manager, which TensorFlow
keeps in a global variable meanwhile (`_active_context` of
`tensorflow.python.eager.cancellation`, which belongs to the process up to 2.21, and to
the thread from 2.22 on). So up to 2.21 a function that another thread calls while
closures run is under the same manager. If that function fails, even if the error is
caught, TensorFlow cancels everything under the manager: all closures, also later ones,
and their CancelledError ends the training. Conversely, the error of a closure cancels
the function in the middle of its work.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Private: nothing public calls a function without a cancellation manager.
from tensorflow.python.eager import cancellation  # pyright: ignore

_this_thread = threading.local()
_lock = threading.Lock()  # It guards the replacement, which is made once.
_stock_context: Callable[[], Any] | None = None


@contextlib.contextmanager
def apart_from_closures() -> Iterator[None]:
    """Lets this thread call functions under no cancellation manager.

    The first call replaces, for good, the function that TensorFlow asks for the
    manager. The new one gives all other threads the same answer as before. Until then,
    and in processes that never come here, TensorFlow is unchanged.
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
    """Returns the cancellation manager of a function call; TensorFlow calls it."""
    if _is_apart() or _stock_context is None:
        return None
    return _stock_context()


def _replace() -> None:
    global _stock_context
    with _lock:
        if _stock_context is None:
            _stock_context = cancellation.context
            cancellation.context = _manager
