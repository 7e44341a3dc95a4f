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


def sum_by_row(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums the values of equal indices, with static shapes, as XLA requires.

    Returns rows: the indices, sorted, as many as there were. sums: for each of these,
    the sum of all values of that row. Equal rows have equal sums, so that it does not
    matter which of them is written last.
    """
    rows, sums, _ = _sums_and_firsts(values, indices)
    return rows, sums


def places_of_equal(rows: tf.Tensor) -> tf.Tensor:
    """Numbers rows that are sorted, so that equal ones have one number."""
    return _places(_are_first(rows))


def sum_by_first_row(
    values: tf.Tensor, indices: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums the values of equal indices, with static shapes, as XLA requires.

    Returns rows: the indices, sorted, as many as there were. sums: for the first of
    equal rows the sum of all values of that row, and zeros for the others, so that
    norms are those of distinct rows.
    """
    rows, sums, is_first = _sums_and_firsts(values, indices)
    is_first = tf.reshape(is_first, [-1, *[1] * (len(sums.shape) - 1)])
    return rows, tf.where(is_first, sums, tf.zeros_like(sums))


def _sums_and_firsts(values, indices):
    """Returns the sorted rows, their sums, and whether each is the first of equals."""
    order = tf.argsort(indices, stable=True)
    rows = tf.gather(indices, order)
    is_first = _are_first(rows)
    place = _places(is_first)
    sums = tf.math.unsorted_segment_sum(
        tf.gather(values, order), place, num_segments=tf.size(indices)
    )
    return rows, tf.gather(sums, place), is_first


def _are_first(rows):
    return tf.concat([rows[:1] == rows[:1], rows[1:] != rows[:-1]], axis=0)


def _places(are_first):
    return tf.cumsum(tf.cast(are_first, tf.int32)) - 1
