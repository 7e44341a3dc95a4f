"""Sparse gradients in which each row is named once."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import embedding_ops


def sum_equal_rows(gradients: Sequence[Any]) -> list[Any]:
    """Sums the values of rows that a sparse gradient names several times.

    Clipping needs the gradient itself: the norm of its parts differs, and a sum of
    clipped parts is not clipped. The ops of this package sum equal rows faster, but
    only after that.

    Args:
        gradients: tensors, `tf.IndexedSlices`, or None.

    Returns:
        The same gradients, in which the sparse ones have each row once. Gradients of
        lookups by this package's ops are like that already.
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
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
