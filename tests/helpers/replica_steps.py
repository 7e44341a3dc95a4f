"""Three steps of an optimizer with two replicas, whose gradients differ, or alone."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

STEPS = 3


def make_variables() -> list[tf.Variable]:
    return [tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3]))]


def gradients() -> tuple[tf.IndexedSlices, tf.Tensor]:
    """A sparse and a dense gradient of this replica."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    size = tf.cast(replica + 1, tf.float32)
    rows, shape = tf.stack([replica, 3]), tf.constant([5, 2])
    return tf.IndexedSlices(size * tf.ones([2, 2]), rows, shape), size * tf.ones([3])


def whole_gradients() -> tuple[tf.IndexedSlices, tf.Tensor]:
    """The sum of both replicas' gradients."""
    values = tf.constant([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]])
    rows, shape = tf.constant([0, 3, 1, 3]), tf.constant([5, 2])
    return tf.IndexedSlices(values, rows, shape), 3.0 * tf.ones([3])


def train_alone(optimizer: Any) -> list[tf.Variable]:
    """Makes the steps without a strategy, with the sum of the gradients."""
    variables = make_variables()
    for _ in range(STEPS):
        optimizer.apply_gradients(zip(whole_gradients(), variables, strict=True))
    return variables


def train(
    strategy: Any, context: str, optimizer: Any, variables: Any, wrap: Callable
) -> None:
    """Makes the steps in replicas; outside of them; or with the "whole" gradients."""

    def update(*grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    @wrap
    def step():
        if context == "replica":
            strategy.run(lambda: update(*gradients()))
        elif context == "cross_replica":
            update(*strategy.run(gradients))
        else:
            update(*whole_gradients())

    with strategy.scope():
        for _ in range(STEPS):
            step()
