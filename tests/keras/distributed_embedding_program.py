"""Trains a DistributedEmbedding on a cluster.

Argument: a folder for files.
"""

import json
import pathlib
import sys

import embedding_models as models
import hops
import keras_variants
import numpy as np
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

STEPS, EXAMPLES = 40, 12
SERVERS = 3
LEGACY = not keras_variants.IS_KERAS_3


def as_lists(tables):
    return {name: table.tolist() for name, table in tables.items()}


def dataset(context=None):
    """The same batch for all workers, for ever."""
    del context
    return tf.data.Dataset.from_tensors(models.batch(EXAMPLES)).repeat()


def make(strategy, optimizer, **options):
    with strategy.scope():
        return models.make(
            models.Distributed, optimizer(), models.initial_tables(), **options
        )


def devices_of(variables):
    return [keras_variants.native(x).device for x in variables]


def asynchronous(strategy, folder):
    """Each worker's steps advance the powers of each part."""
    model = make(strategy, lambda: tfs.keras.AdamAsync(0.01, beta_1=0.5))
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    parts = model.embedding.trainable_variables
    powers = [model.optimizer.slots(part)["beta_1_power"].numpy() for part in parts]
    ids, targets = models.batch(EXAMPLES)
    data = tf.data.Dataset.from_tensors((ids, targets))
    model.save_weights(str(pathlib.Path(folder) / "saved.weights.h5"))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(str(pathlib.Path(folder) / "tensorflow"))
    tables = model.tables()
    model.set_tables(models.initial_tables(3))
    checkpoint.restore(path).assert_consumed()
    return {
        "checkpoint": path,
        "restored": [
            np.array_equal(table, tables[name])
            for name, table in model.tables().items()
        ],
        "steps": [float(np.log2(1 / power[0])) - 1 for power in powers],
        "bytes": [int(np.prod(part.shape)) for part in parts],
        "devices": devices_of(parts),
        "rows": sum(
            int(np.count_nonzero(np.any(model.optimizer.slots(x)["m"].numpy(), axis=1)))
            for x in parts[:SERVERS]
        ),
        "slot_devices": devices_of(model.optimizer.slots(x)["m"] for x in parts),
        "tables": as_lists(model.tables()),
        "evaluated": tfs.keras.evaluate(model, data, verbose=0),
        "predicted": np.asarray(
            tfs.keras.predict(model, data.map(lambda x, _: x), verbose=0)
        ).tolist(),
    }


def from_one_process(strategy, folder):
    """Tables that are read into parts on the servers, as TensorFlow's checkpoint."""
    layers = []
    for scope in (tf.distribute.get_strategy().scope(), strategy.scope()):
        with scope:
            layer = tfs.keras.DistributedEmbedding(models.feature_configs())
            layer.build()
            layers.append(layer)
    layers[0].set_embedding_tables(models.initial_tables(5))
    prefix = str(pathlib.Path(folder) / "one_process")
    path = tf.train.Checkpoint(layer=layers[0]).save(prefix)
    tf.train.Checkpoint(layer=layers[1]).restore(path)
    return as_lists(layers[1].get_embedding_tables())


def synchronous(strategy):
    """Updates with two equal gradients are like updates with one."""
    results = {}
    for name, optimizer, options in (
        ("adam", lambda: tf.keras.optimizers.Adam(0.01), {}),
        ("adam_async", lambda: tfs.keras.AdamAsync(0.01), {}),
        ("apart", lambda: tfs.keras.AdamAsync(0.01), {"table_stacking": None}),
        ("bfloat16", lambda: tfs.keras.AdamAsync(0.01), {"transfer_dtype": "bfloat16"}),
    ):
        model = make(
            strategy,
            lambda make=optimizer: tfs.keras.SyncReplicas(make(), 2, 2, spares=False),
            **options,
        )
        tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
        results[name] = {
            "updates": int(model.optimizer.stats()["updates"]),
            "applied": int(model.optimizer.stats()["applied"]),
            "tables": as_lists(model.tables()),
        }
    return results


def one_table(strategy, folder):
    """A layer of one large table, in a stock model."""
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((4,), dtype="int64"),
                tfs.keras.Embedding(40_000, 8, shards=SERVERS if LEGACY else None),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(1),
            ]
        )
        model.compile(tfs.keras.AdamAsync(0.01), loss="mse")
    words = np.random.default_rng(0).integers(0, 40_000, (EXAMPLES, 4))

    def data(context):
        del context
        batch = (words, np.ones([EXAMPLES, 1]))
        return tf.data.Dataset.from_tensors(batch).repeat()

    history = tfs.keras.fit(model, data, epochs=2, steps_per_epoch=STEPS, verbose=0)
    model.save_weights(str(pathlib.Path(folder) / "one.weights.h5"))
    return {
        "devices": devices_of(model.layers[0].trainable_variables),
        "losses": history.history["loss"],
        "words": words.tolist(),
        "predicted": model(words).numpy().tolist(),
    }


class Tied(tf.keras.Model):
    """Guesses a word by the vectors of others, with the same table for the guesses."""

    def __init__(self):
        super().__init__()
        self.words = tfs.keras.Embedding(40_000, 8, shards=SERVERS if LEGACY else None)

    def call(self, words):
        hidden = tf.reduce_mean(self.words(words), axis=1)
        return tf.matmul(hidden, self.words.embeddings, transpose_b=True)


def tied(strategy):
    """A table of which a step looks up rows and reads all, beside one process."""
    words = np.arange(12).reshape([3, 4])

    def data(context=None):
        del context
        return tf.data.Dataset.from_tensors((words, [7, 100, 39_999])).repeat()

    def make(optimizer):
        model = Tied()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss=loss)
        model(words)
        return model

    single = make(tf.keras.optimizers.SGD(10.0))
    with strategy.scope():
        sgd = tf.keras.optimizers.SGD(10.0)
        model = make(tfs.keras.SyncReplicas(sgd, 2, 2, spares=False))
    (before,) = single.get_weights()
    model.set_weights([before])
    single.fit(data(), steps_per_epoch=STEPS // 2, verbose=0)
    tfs.keras.fit(model, data, steps_per_epoch=STEPS, verbose=0)
    (table,), (expected,) = model.get_weights(), single.get_weights()
    return {
        "parts": len(model.weights),
        "moved": float(np.max(np.abs(expected - before))),
        "error": float(np.max(np.abs(table - expected))),
    }


def messages(strategy):
    """How many tensors a step of the layer alone sends, and how many parts it has."""
    with strategy.scope():
        layer = tfs.keras.DistributedEmbedding(models.feature_configs())
        layer.build()
        optimizer = tfs.keras.AdamAsync()
        optimizer.build(layer.trainable_variables)
    variables = layer.trainable_variables

    def step():
        with tf.GradientTape() as tape:
            vectors = layer(models.batch(EXAMPLES)[0], training=True)
            loss = tf.add_n([tf.reduce_sum(x) for x in vectors.values()])
        natives = [keras_variants.native(x) for x in variables]
        gradients = tape.gradient(loss, natives)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    with strategy.scope():
        trained = tf.function(lambda: strategy.run(step)).get_concrete_function()
    return hops.messages(trained), len(variables)


def error(strategy):
    """The message of a step with an id that is in no table, and the state it left."""
    model = make(strategy, lambda: tfs.keras.AdamAsync(0.01))

    def bad(context):
        del context
        ids, targets = models.batch(EXAMPLES)
        ids["day"][3, 1] = -7
        return tf.data.Dataset.from_tensors((ids, targets)).repeat()

    try:
        tfs.keras.fit(model, bad, steps_per_epoch=4, verbose=0)
    except tf.errors.InvalidArgumentError as raised:
        return str(raised), as_lists(model.tables())
    return None


def main():
    folder = json.loads(sys.argv[1])
    strategy = make_strategy()
    programs.report(
        {
            "asynchronous": asynchronous(strategy, folder),
            "from_one_process": from_one_process(strategy, folder),
            "synchronous": synchronous(strategy),
            "one_table": one_table(strategy, folder),
            "tied": tied(strategy),
            "messages": messages(strategy),
            "error": error(strategy),
        }
    )


if __name__ == "__main__":
    main()
