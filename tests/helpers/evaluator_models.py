"""A model with tables, for tests of an evaluator of its checkpoints."""

from typing import Any

import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

TABLES = {"users": 40_000, "items": 100}
WIDTH, BATCH = 8, 16


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    ids = np.stack([draw.integers(0, n, BATCH) for n in TABLES.values()], axis=1)
    return ids, draw.normal(size=(BATCH, 1)).astype(np.float32)


def make(built: bool = True) -> Any:
    """A model with tables that checkpoints have by rows, and smaller variables."""
    configs = {
        name: tfs.keras.FeatureConfig(
            name, tfs.keras.TableConfig(name, size, WIDTH, combiner=None)
        )
        for name, size in TABLES.items()
    }
    embedding = tfs.keras.DistributedEmbedding(configs, name="tables")
    dense = tf.keras.layers.Dense(1)

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.dense = embedding, dense

        def call(self, ids):
            vectors = self.embedding({k: ids[:, i] for i, k in enumerate(TABLES)})
            return self.dense(tf.concat([vectors[k] for k in TABLES], axis=1))

    model = Model()
    model.compile(tfs.keras.AdamAsync(0.01), loss="mse", metrics=["mae"])
    if built:
        model(tf.constant(batch(0)[0]))
    return model
