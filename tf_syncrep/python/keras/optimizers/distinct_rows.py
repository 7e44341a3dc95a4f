"""Makes sparse gradients name each row once."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizers.handle_ops import sum_by_first_row
from tf_syncrep.python.ops import embedding_ops


def sum_equal_rows(gradients: Sequence[Any]) -> list[Any]:
    """Sums the values of rows that a sparse gradient names several times.

    Clipping needs these sums: the norm of the single values differs from theirs, and a
    sum of clipped values is not clipped. The ops of this package sum equal rows faster,
    but only after clipping.

    `gradients`: tensors, `tf.IndexedSlices`, or None.
    """
    return [
        _sum_equal_rows(gradient) if _may_have_equal_rows(gradient) else gradient
        for gradient in gradients
    ]


def _may_have_equal_rows(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices) and not (
        embedding_ops.are_embedding_rows(gradient.indices)
    )


def _sum_equal_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    if compat.compiled_by_xla():
        # XLA does not know the number of distinct rows: what it computes from the rows
        # of `tf.unique` is wrong, without any error (seen in TensorFlow 2.21).
        rows, values = sum_by_first_row(gradient.values, gradient.indices)
        return tf.IndexedSlices(values, rows, gradient.dense_shape)
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
