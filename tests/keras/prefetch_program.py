"""Trains by `tfs.keras.fit(prefetch_rows=...)` on one worker.

Argument, JSON: the names of the scenarios to run.
"""

import json
import sys
from typing import Any

import keras_variants
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy
from prefetch_twin import (
    BATCH,
    EPOCHS,
    FEATURES,
    FOUND,
    PER_EXECUTION,
    RATE,
    ROWS,
    STEPS,
    WIDTH,
    data,
    first_values,
)

import tf_syncrep as tfs

layers = tf.keras.layers


def dataset(context=None):
    del context
    return tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)


class Twice(layers.Layer):
    """Looks ids up, and then others that depend on what was found."""

    def __init__(self, tables: Any):
        super().__init__()
        self.tables = tables

    def build(self, shape):
        del shape

    def call(self, ids):
        first, _ = self.tables([ids[:, 0], ids[:, 1]])
        sizes = tf.reduce_sum(tf.abs(first), axis=1)
        found = tf.math.floormod(tf.cast(sizes * FOUND, tf.int32), ROWS)
        return tf.concat(self.tables([ids[:, 0], found]), axis=1)


def distributed():
    return tfs.keras.DistributedEmbedding(
        [
            tfs.keras.FeatureConfig(
                f"feature_{i}",
                tfs.keras.TableConfig(
                    f"table_{i}",
                    ROWS,
                    WIDTH,
                    tf.keras.initializers.Constant(first_values()[i]),
                ),
            )
            for i in range(FEATURES)
        ]
    )


def model_of(kind, optimizer):
    ids = layers.Input((FEATURES,), dtype="int32")
    values = first_values()
    if kind == "twice":
        vectors = Twice(distributed())(ids)
    elif kind == "layers":
        tables = [
            tfs.keras.Embedding(
                ROWS, WIDTH, tf.keras.initializers.Constant(values[i]), shards=2
            )
            for i in range(FEATURES)
        ]
        vectors = layers.Concatenate()([x(ids[:, i]) for i, x in enumerate(tables)])
    else:
        tables = distributed()
        vectors = layers.Concatenate()(tables([ids[:, i] for i in range(FEATURES)]))
    dense = layers.Dense(1)
    model = tf.keras.Model(ids, dense(vectors))
    dense.set_weights(values[FEATURES:])
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=PER_EXECUTION)
    return model


class Kept(tf.keras.callbacks.Callback):
    """What callbacks were told of each epoch."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)


def trained(strategy, kind, source, prefetch):
    with strategy.scope():
        model = model_of(kind, tfs.keras.SGD(RATE))
    kept = Kept()
    arguments: dict[str, Any] = {"x": dataset()}
    if source == "worker":
        arguments = {"x": lambda c: dataset(c).repeat(), "steps_per_epoch": STEPS}
    elif source == "ends":
        arguments = {"x": dataset}
    history = tfs.keras.fit(
        model,
        **arguments,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[kept],
        prefetch_rows=prefetch,
    )
    return {
        "weights": [x.tolist() for x in model.get_weights()],
        "iterations": int(keras_variants.native(model.optimizer.iterations).numpy()),
        "history": {name: list(map(float, x)) for name, x in history.history.items()},
        "batches": kept.batches,
    }


def refused(strategy):
    """What is said of models that cannot have it."""
    said = {}
    with strategy.scope():
        synchronous = model_of(
            "distributed", tfs.keras.SyncReplicas(tfs.keras.SGD(RATE), 1)
        )
        ids = layers.Input((), dtype="int64")
        growing = tfs.keras.Embedding(
            tfs.keras.Dynamic(10), WIDTH, name="growing_words"
        )
        grown = tf.keras.Model(ids, layers.Dense(1)(growing(ids)))
        grown.compile(tfs.keras.AdamAsync(), "mse")
    for name, model in (("synchronous", synchronous), ("growing", grown)):
        try:
            tfs.keras.fit(model, dataset(), prefetch_rows=True)
        except ValueError as error:
            said[name] = str(error)
    return said


def main(names):
    strategy = make_strategy()
    results = {}
    for name in names:
        if name == "refused":
            results[name] = refused(strategy)
        else:
            kind, source, prefetch = name.split()
            results[name] = trained(strategy, kind, source, prefetch == "early")
    programs.report(results)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
