"""Sums the gradients of all replicas for an update in cross-replica context."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


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
