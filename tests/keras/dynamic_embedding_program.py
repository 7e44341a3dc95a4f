"""Trains tables that grow on a cluster.

Arguments: a folder for files, and the number of parameter servers.
"""

import contextlib
import itertools
import json
import sys

import dynamic_models as models
import hops
import keras_variants
import numpy as np
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

STEPS, EXAMPLES = 6, 12
# One batch follows the other, each as often as is needed for both workers to see it.
SEEDS = range(3)


def as_lists(tables):
    return {
        name: table.tolist() if isinstance(table, np.ndarray) else as_pair(table)
        for name, table in tables.items()
    }


def as_pair(table):
    return {"keys": table.keys.tolist(), "vectors": table.vectors.tolist()}


def repeated(seed, with_keys):
    """The same batch for all workers, for ever."""
    ids, targets = models.batch(EXAMPLES, seed)
    ids = models.as_keys(ids) if with_keys else ids

    def dataset(context=None):
        del context
        return tf.data.Dataset.from_tensors((ids, targets)).repeat()

    return dataset


def sync(inner):
    return tfs.keras.SyncReplicas(inner, 2, 2, spares=False)


OPTIMIZERS = {
    "adam": lambda: sync(tf.keras.optimizers.Adam(0.05)),
    "rowwise_adagrad": lambda: sync(tfs.keras.RowwiseAdagrad(0.05)),
    "lazy_ftrl": lambda: sync(tfs.keras.FTRL(0.1, l1_regularization_strength=0.01)),
    "lazy_momentum": lambda: sync(tfs.keras.SGD(0.1, momentum=0.5)),
    "adam_async": lambda: sync(tfs.keras.AdamAsync(0.05)),
}


def synchronous(strategy):
    """The vectors that both kinds of tables have learned."""
    with strategy.scope():
        layer = models.growing("sgd").embedding
    layer(models.as_keys(models.all_ids()), training=True)
    tables = layer.get_embedding_tables()
    results = {}
    for name, make in OPTIMIZERS.items():
        found = []
        for with_keys in (True, False):
            with strategy.scope():
                optimizer = make()
                model = (
                    models.growing(optimizer)
                    if with_keys
                    else models.fixed(optimizer, tables)
                )
            for seed in SEEDS:
                tfs.keras.fit(
                    model, repeated(seed, with_keys), steps_per_epoch=STEPS, verbose=0
                )
            found.append(as_lists(model.tables()))
        results[name] = found
    return as_lists(tables), results


def asynchronous(strategy):
    """A training in which workers meet new keys all the time."""
    with strategy.scope():
        model = models.growing(tfs.keras.AdamAsync(0.05))
    data = models.dataset(range(40), EXAMPLES, with_keys=True)
    history = tfs.keras.fit(model, data, epochs=3, verbose=0)
    stats = model.embedding.table_stats()
    evaluated = tfs.keras.evaluate(model, data, verbose=0)
    unknown = {name: x + 1 for name, x in models.as_keys(models.batch(4)[0]).items()}
    predicted = tfs.keras.predict(
        model, tf.data.Dataset.from_tensors(unknown), verbose=0
    )
    (bias,) = keras_variants.native(model.dense.bias).numpy()
    return {
        "losses": history.history["loss"],
        "rows": history.history["rows/items"],
        "evaluated": evaluated,
        "stats": stats,
        "stats_after": model.embedding.table_stats(),
        "of_unknown": np.unique(predicted).tolist(),
        "bias": float(bias),
        "devices": [keras_variants.native(x).device for x in model.embedding.variables],
        "tables": as_lists(model.tables()),
    }


def messages(strategy):
    """How many tensors a step of the layer alone sends.

    A pair for each way of training: with tables that grow, and with fixed ones.
    """
    counts = {"asynchronous": [], "synchronous": []}
    for kind, with_keys in itertools.product(counts, (True, False)):
        sizes = dict.fromkeys(models.SIZES, tfs.keras.Dynamic(99) if with_keys else 99)
        with strategy.scope():
            layer = models.Model(sizes).embedding
            layer.build()
            optimizer = tfs.keras.AdamAsync()
            if kind == "synchronous":
                optimizer = tfs.keras.SyncReplicas(optimizer, 1, 1)
            optimizer.build(layer.trainable_variables)

        def step(layer=layer, optimizer=optimizer):
            variables = layer.trainable_variables
            with getattr(optimizer, "step", contextlib.nullcontext)():
                with tf.GradientTape() as tape:
                    vectors = layer(models.batch(EXAMPLES)[0], training=True)
                    loss = tf.add_n([tf.reduce_sum(x) for x in vectors.values()])
                natives = [keras_variants.native(x) for x in variables]
                gradients = tape.gradient(loss, natives)
                optimizer.apply_gradients(zip(gradients, variables, strict=True))

        with strategy.scope():
            function = tf.function(lambda step=step: strategy.run(step))
            counts[kind].append(hops.messages(function.get_concrete_function()))
    return counts


def evicting(strategy, make):
    """A training in which rows go, and come back."""
    with strategy.scope():
        model = models.growing(make(), unused_for=10)
    tables = {}
    for seed in (0, 1, 0):
        tfs.keras.fit(model, repeated(seed, True), steps_per_epoch=60, verbose=0)
        tables[seed] = as_lists(model.tables())
    used = {seed: _keys_of_batch(seed) for seed in (0, 1)}
    return {"tables": tables, "used": used, "stats": model.embedding.table_stats()}


def _keys_of_batch(seed):
    """The keys that a batch asks for, by table."""
    keys = models.as_keys(models.batch(EXAMPLES, seed)[0])
    return {
        name: np.unique(
            np.concatenate(
                [
                    np.ravel(x)
                    for feature, x in keys.items()
                    if models.FEATURES[feature] == name
                ]
            )
        ).tolist()
        for name in models.SIZES
    }


def checkpoints(strategy, folder):
    """Restores full checkpoints and checkpoints of changes here."""
    results = {}
    for name, make in (
        ("adam", lambda: tf.keras.optimizers.Adam(0.05)),
        ("rowwise_adagrad", lambda: tfs.keras.RowwiseAdagrad(0.05)),
        ("adam_async", lambda: tfs.keras.AdamAsync(0.05)),
    ):
        with strategy.scope():
            model = models.growing(make())
        path = f"{folder}/{name}"
        checkpoint = tfs.keras.Checkpoint(path, model=model, full_every=3)
        for seed in SEEDS:
            tfs.keras.fit(model, repeated(seed, True), steps_per_epoch=STEPS, verbose=0)
            checkpoint.save(wait=True)
        with strategy.scope():
            again = models.growing(make())
        restored = tfs.keras.Checkpoint(path, model=again).restore()
        tables = as_lists(model.tables())
        results[name] = {
            "tables": tables,
            "restored": as_lists(again.tables()) == tables,
            "path": restored.path,
        }
        for one in (model, again):
            tfs.keras.fit(one, repeated(0, True), steps_per_epoch=1, verbose=0)
        results[name]["next"] = as_lists(model.tables())
        results[name]["next_restored"] = as_lists(again.tables())
    return results


def main():
    folder, num_servers = (json.loads(x) for x in sys.argv[1:])
    strategy = make_strategy()
    tables, trained = synchronous(strategy)
    programs.report(
        {
            "servers": num_servers,
            "initial": tables,
            "synchronous": trained,
            "asynchronous": asynchronous(strategy),
            "messages": messages(strategy),
            "evicting_async": evicting(strategy, lambda: tfs.keras.AdamAsync(0.05)),
            "evicting_sync": evicting(
                strategy, lambda: sync(tf.keras.optimizers.Adam(0.05))
            ),
            "checkpoints": checkpoints(strategy, folder),
        }
    )


if __name__ == "__main__":
    main()
