"""Made-up clicks of users on items, by tastes that a model can learn.

Each user and each item has a taste: a few hidden numbers. The better the two of a pair
agree, the likelier is a click. Nothing is downloaded or read. The model is one for v1
graphs: a click is likely if two embeddings agree.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf

NUM_USERS = 2000
NUM_ITEMS = 500
_TASTES = np.random.default_rng(0).normal(size=(NUM_USERS + NUM_ITEMS, 2))


def batches(seed: int, size: int = 256) -> Iterator[dict[str, np.ndarray]]:
    """Draws batches without end; each worker has a seed, and so data, of its own.

    They have "user" and "item", int64 of shape [size], and "click", float32 of the same
    shape, 0 or 1.
    """
    random = np.random.default_rng([1, seed])
    while True:
        user = random.integers(NUM_USERS, size=size)
        item = random.integers(NUM_ITEMS, size=size)
        agreement = np.sum(_TASTES[user] * _TASTES[NUM_USERS + item], axis=1)
        click = random.random(size) < 1 / (1 + np.exp(-3 * agreement))
        yield {"user": user, "item": item, "click": click.astype(np.float32)}


def build_model(num_ps: int = 1) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Builds the model in the default graph, its tables on so many parameter servers.

    Returns its inputs, placeholders by the names that `batches` has, and its loss.
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
        for name, rows in (("users", NUM_USERS), ("items", NUM_ITEMS))
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
