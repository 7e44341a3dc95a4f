"""The NeuMF of `examples/movielens.py` with tables of TFRA, without tf_syncrep.

Runs by an interpreter that has TensorFlow Recommenders Addons, each of whose wheels is
for one version of TensorFlow. It has the same data, splits, model, losses, learning
rates and scores; its four tables are dynamic ones of TFRA, trained like the layers by
Adam of tf_keras in TFRA's `DynamicEmbeddingOptimizer`. It takes the example's options,
and writes the same `scores.json`.

    PYTHON benchmarks/harness/tfra_neumf.py --model neumf --left-out any --runs 5
"""

from __future__ import annotations

import importlib
import os

os.environ.update(
    {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1",
    }
)

import numpy as np
import other_neumf
import tensorflow as tf


def train(training: other_neumf.Training) -> tuple[np.ndarray, float]:
    """Trains once; returns the scores of what is tested, and the seconds."""
    tfra = importlib.import_module("tensorflow_recommenders_addons").dynamic_embedding
    tf.keras.utils.set_random_seed(training.seed)
    tables = [
        tfra.get_variable(
            f"{name}_{training.seed}",
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            dim=training.width,
            initializer=tf.compat.v1.random_normal_initializer(stddev=0.01),
            devices=["/CPU:0"],
        )
        for name in ("users", "items", "users_of_layers", "items_of_layers")
    ]
    layers = [
        tf.keras.layers.Dense(units, activation="relu")
        for units in (2 * training.width, training.width, training.width // 2)
    ]
    layers.append(tf.keras.layers.Dense(1))
    adam = tf.keras.optimizers.Adam(training.learning_rate, epsilon=1e-7)
    optimizer = tfra.DynamicEmbeddingOptimizer(adam)
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    def logits_of(vectors):
        # TFRA does not say how many elements a vector has.
        vectors = [tf.reshape(v, [-1, training.width]) for v in vectors]
        hidden = tf.concat(vectors[2:], 1)
        for layer in layers[:-1]:
            hidden = layer(hidden)
        return layers[-1](tf.concat([vectors[0] * vectors[1], hidden], 1))

    @tf.function(reduce_retracing=True)
    def step(users, items, labels):
        # TFRA has a gradient for each key only where a lookup names it once.
        keys, places = zip(*(tf.unique(ids) for ids in (users, items)), strict=True)
        with tf.GradientTape() as tape:
            vectors, trained = [], []
            for i, table in enumerate(tables):
                name = f"lookup_{i}"
                rows = tfra.embedding_lookup(table, keys[i % 2], name=name)
                trained.append(table.get_trainable_by_name(name))
                vectors.append(tf.gather(rows, places[i % 2]))
            squares = tf.add_n([tf.reduce_sum(v**2) for v in vectors])
            total = loss(labels[:, tf.newaxis], logits_of(vectors))
            total += training.shrink * squares / tf.cast(tf.size(labels), tf.float32)
        trained += [w for layer in layers for w in layer.trainable_weights]
        gradients = tape.gradient(total, trained)
        optimizer.apply_gradients(zip(gradients, trained, strict=True))

    @tf.function
    def predict(users, items):
        ids = (users, items, users, items)
        found = [table.lookup(i) for table, i in zip(tables, ids, strict=True)]
        return logits_of(found)[:, 0]

    with other_neumf.Clock() as clock:
        for rate, batches in training.epochs:
            adam.learning_rate.assign(rate)
            for batch in batches:
                step(*map(tf.constant, batch))
    return predict(*map(tf.constant, training.tested)).numpy(), clock.seconds


if __name__ == "__main__":
    other_neumf.main("tfra", train)
