"""Sums of gradients: over equal rows, and over replicas."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.tracing import compiled_by_xla
from tf_syncrep.python.ops import embedding_ops


def sum_over_replicas(
    gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> list[Any]:
    """Sums gradients that differ between replicas, as an update in a replica would.

    `gradients`: for each variable the result of `strategy.run`, or None. If this task
    has several replicas, a tensor or `tf.IndexedSlices` that is not per replica stands
    for the gradient of the whole step. Returns the gradients of the whole step; each is
    a tensor, a `tf.IndexedSlices` or None.
    """
    strategy = tf.distribute.get_strategy()
    # For a single replica `strategy.run` returns the values as they are; the other
    # tasks' values still have to be added.
    one_of_several_tasks = (
        len(strategy.extended.worker_devices) == 1 < strategy.num_replicas_in_sync
    )
    gradients = list(gradients)
    places = [
        i
        for i, gradient in enumerate(gradients)
        if gradient is not None
        and (
            one_of_several_tasks
            or isinstance(gradient, tf.types.experimental.distributed.PerReplica)
        )
    ]
    if places:
        totals = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, [(gradients[i], variables[i]) for i in places]
        )
        for i, total in zip(places, totals, strict=True):
            gradients[i] = strategy.experimental_local_results(total)[0]
    return gradients


def sum_equal_rows(gradients: Sequence[Any]) -> list[Any]:
    """Sums the values of rows that a sparse gradient names several times.

    Clipping needs these sums: the norm of the single values differs from theirs, and a
    sum of clipped values is not clipped. The ops of this package sum equal rows faster,
    but only after clipping.

    `gradients`: tensors, `tf.IndexedSlices`, or None.
    """
    return [_sum_equal_rows(gradient) for gradient in gradients]


def _sum_equal_rows(gradient: Any) -> Any:
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    if not is_sparse or embedding_ops.are_embedding_rows(gradient.indices):
        return gradient
    if compiled_by_xla():
        # XLA does not know the number of distinct rows: what it computes from the rows
        # of `tf.unique` is wrong, without any error (seen in TensorFlow 2.21).
        rows, values = sum_by_first_row(gradient.values, gradient.indices)
        return tf.IndexedSlices(values, rows, gradient.dense_shape)
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


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
