"""Ids and weights of examples that have different numbers of them."""

from typing import Any

import tensorflow as tf


def is_ragged(x: Any) -> bool:
    """Returns whether ids or weights are a ragged or sparse tensor."""
    return isinstance(x, tf.RaggedTensor | tf.SparseTensor)


def as_ragged(x: Any) -> Any:
    """Converts a sparse tensor of ids or weights into a ragged one."""
    if isinstance(x, tf.SparseTensor):
        # Values may come in any order. If theirs is that of the rows, nothing is moved.
        x = tf.sparse.reorder(x)
        return tf.RaggedTensor.from_value_rowids(
            x.values, x.indices[:, 0], nrows=x.dense_shape[0], validate=False
        )
    return x
