"""Errors of workers that are lost."""

import tensorflow as tf

# Private: nothing public tells for which errors TensorFlow makes a closure again
# (checked with TensorFlow 2.15.1 and 2.22.0rc0).
from tensorflow.python.distribute.coordinator.cluster_coordinator import (  # pyright: ignore
    _is_worker_failure,
)

_OF_CONNECTIONS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


def may_be_lost(error: Exception) -> bool:
    """Returns whether an error may come from the loss of a task alone."""
    return isinstance(error, _OF_CONNECTIONS) or _is_worker_failure(error)
