"""Python functions that a ClusterCoordinator runs on the thread of a worker.

All private names here were checked with TensorFlow 2.15.1 and 2.22.0rc0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Private: the public `experimental_get_current_worker_index` works only inside of a
# tf.function.
from tensorflow.python.distribute.coordinator import (  # pyright: ignore
    coordinator_context,
)

# Private: nothing public tells for which errors TensorFlow runs a closure again.
from tensorflow.python.distribute.coordinator.cluster_coordinator import (  # pyright: ignore
    _is_worker_failure,
)

_OF_CONNECTIONS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


def schedule(coordinator: Any, function: Callable[..., None], args: Any) -> None:
    """Schedules a Python function, which runs on the thread of a worker.

    Private: the public `schedule` takes a `tf.function` alone, whose error nobody can
    look at before TensorFlow does.

    `args`: its arguments, of which the function gets the worker's own parts.
    """
    # Nobody asks for the `RemoteValue`.
    coordinator._cluster.schedule(function, args=args, kwargs=None)


def worker_index() -> int:
    """Returns the number of the worker on whose thread this is called."""
    return coordinator_context.get_current_dispatch_context().worker_index


def may_be_lost(error: Exception) -> bool:
    """Returns whether an error may come from the loss of a task alone."""
    return isinstance(error, _OF_CONNECTIONS) or _is_worker_failure(error)


class Cancellation:
    """The cancellation of closures that a coordinator runs now.

    Private: TensorFlow calls `tf.function`s so that they end when another closure has
    failed, and not what a Python function calls.
    """

    def __init__(self, coordinator: Any):
        """Takes the coordinator's present one; after a failure it has another."""
        self._manager = coordinator._cluster.closure_queue._cancellation_mgr

    def of(self, function: Any) -> Callable[..., Any]:
        """Returns a concrete function that ends when closures are cancelled."""
        return self._manager.get_cancelable_function(function)

    def has_begun(self) -> bool:
        """Returns whether closures have been cancelled."""
        return self._manager.is_cancelled
