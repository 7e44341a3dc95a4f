"""Updates of variables with TensorFlow's own ops, by their handles.

Within an update, ops on handles are the same for variables of every `tf.distribute`
strategy, unlike methods of variables.
"""

from typing import Any

import tensorflow as tf


def read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Reads a variable."""
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def assign(handle: tf.Tensor, value: Any) -> None:
    """Writes a variable."""
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def add(handle: tf.Tensor, value: Any) -> None:
    """Adds to a variable, by one op."""
    tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)


def gather(handle: tf.Tensor, rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Reads rows of a variable."""
    return tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=dtype)


def scatter(handle: tf.Tensor, rows: tf.Tensor, value: Any) -> None:
    """Writes rows of a variable."""
    tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=rows, updates=value)
