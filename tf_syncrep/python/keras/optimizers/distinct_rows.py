"""Sparse gradients in which each row is named once."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizers.handle_ops import sum_by_first_row
from tf_syncrep.python.ops import embedding_ops


def sum_equal_rows(gradients: Sequence[Any]) -> list[Any]:
    """Sums the values of rows that a sparse gradient names several times.

    Clipping needs the gradient itself: the norm of its parts differs, and a sum of
    clipped parts is not clipped. The ops of this package sum equal rows faster, but
    only after that.

    Args:
        gradients: tensors, `tf.IndexedSlices`, or None.

    Returns:
        The same gradients, in which the sparse ones have each row once, or, in
        functions that XLA compiles, once and with zeros from then on. Gradients of
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
    if compat.compiled_by_xla():
        # The number of distinct rows is not known there: what is computed of rows of
        # `tf.unique` is wrong, and nothing says so (seen in TensorFlow 2.21).
        rows, values = sum_by_first_row(gradient.values, gradient.indices)
        return tf.IndexedSlices(values, rows, gradient.dense_shape)
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
