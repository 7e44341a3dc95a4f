"""A model of clicks for v1 graphs: a click is likely if two embeddings agree."""

from __future__ import annotations

import clicks
import tensorflow.compat.v1 as tf


def build(num_ps: int = 1) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Builds the model in the default graph.

    Args:
        num_ps: how many parameter servers share each table of embeddings.

    Returns:
        Its inputs, which are placeholders by the names of `clicks.batches`, and its
        loss, a scalar.
    """
    inputs = {
        "user": tf.placeholder(tf.int64, [None]),
        "item": tf.placeholder(tf.int64, [None]),
        "click": tf.placeholder(tf.float32, [None]),
    }
    users, items = (
        tf.get_variable(
            name,
            [rows, 8],
            initializer=tf.random_normal_initializer(stddev=0.3, seed=rows),
            partitioner=tf.fixed_size_partitioner(num_ps),
        )
        for name, rows in (("users", clicks.NUM_USERS), ("items", clicks.NUM_ITEMS))
    )
    bias = tf.get_variable("bias", initializer=0.0)
    agreement = tf.reduce_sum(
        tf.nn.embedding_lookup(users, inputs["user"])
        * tf.nn.embedding_lookup(items, inputs["item"]),
        axis=1,
    )
    loss = tf.losses.sigmoid_cross_entropy(inputs["click"], agreement + bias)
    return inputs, loss


def feed(inputs: dict[str, tf.Tensor], batch) -> dict[tf.Tensor, object]:
    """Pairs the inputs with a batch, for `session.run`."""
    return {inputs[name]: value for name, value in batch.items()}
