"""Trains tables that grow on a cluster.

Arguments: a folder for files, and the number of parameter servers; with none, it makes
those trainings that have one result only, in this process. With a third argument it
does nothing but restore the checkpoints that are in the folder.
"""

import contextlib
import itertools
import json
import os
import sys
import time

import clusters
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


def fit(model, dataset, steps):
    # Without a cluster, fit takes no function.
    data = dataset if "TF_CONFIG" in os.environ else dataset()
    tfs.keras.fit(model, data, steps_per_epoch=steps, verbose=0)


def sync(inner):
    return tfs.keras.SyncReplicas(inner, 2, 2, spares=False)


OPTIMIZERS = {
    "adam": lambda: sync(tf.keras.optimizers.Adam(0.05)),
    "rowwise_adagrad": lambda: sync(tfs.keras.RowwiseAdagrad(0.05)),
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
                fit(model, repeated(seed, with_keys), STEPS)
            found.append(as_lists(model.tables()))
        results[name] = found
    return tables, results


def own_batches(context):
    """Batches of a worker's own, which the other one never sees, for ever."""
    seeds = seeds_of_worker(int(context.input_pipeline_id))
    batches = [models.batch(EXAMPLES, seed) for seed in seeds]

    def stacked(parts):
        return {name: np.stack([x[name] for x in parts]) for name in models.FEATURES}

    ids = [ids for ids, _ in batches]
    inputs = (stacked([models.as_keys(x) for x in ids]), stacked(ids))
    targets = np.stack([targets for _, targets in batches])
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat()


def seeds_of_worker(worker):
    return range(10 * worker, 10 * worker + 3)


def by_workers_with_own_batches(strategy, tables):
    """The vectors that both kinds of tables have learned, from both workers' batches.

    A worker that was slow at first may have done nothing, so training goes on until the
    keys of both have rows.
    """
    results = {}
    for name, make in OPTIMIZERS.items():
        with strategy.scope():
            model = models.Both(make(), tables)
        deadline = time.monotonic() + clusters.DEADLINE_SECS
        fit(model, own_batches, 2 * STEPS)
        while not all(_has_trained(worker, model.growing) for worker in range(2)):
            assert time.monotonic() < deadline
            fit(model, own_batches, 2 * STEPS)
        results[name] = [as_lists(x.tables()) for x in (model.growing, model.fixed)]
    return results


def _has_trained(worker, model):
    found = model.tables()
    return all(
        set(keys) <= set(found[table].keys.tolist())
        for table, keys in _keys_of_batch(seeds_of_worker(worker)[0]).items()
    )


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
        fit(model, repeated(seed, True), 60)
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


ASYNCHRONOUS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.05),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.05),
    "adam_async": lambda: tfs.keras.AdamAsync(0.05),
}


def checkpoints(strategy, folder):
    """Writes full checkpoints and checkpoints of changes, and makes another step."""
    results = {}
    for name, make in ASYNCHRONOUS.items():
        with strategy.scope():
            model = models.growing(make())
        checkpoint = tfs.keras.Checkpoint(f"{folder}/{name}", model=model, full_every=3)
        for seed in SEEDS:
            fit(model, repeated(seed, True), STEPS)
            checkpoint.save(wait=True)
        results[name] = with_next_step(model)
    return results


def restored(strategy, folder):
    """Restores what `checkpoints` has written, and makes the same step."""
    results = {}
    for name, make in ASYNCHRONOUS.items():
        with strategy.scope():
            model = models.growing(make())
        found = tfs.keras.Checkpoint(f"{folder}/{name}", model=model).restore()
        results[name] = {"path": found.path, **with_next_step(model)}
    return results


def with_next_step(model):
    tables = as_lists(model.tables())
    fit(model, repeated(0, True), 1)
    return {"tables": tables, "next": as_lists(model.tables())}


def trained(strategy, folder, num_servers):
    tables, synchronously = synchronous(strategy)
    results = {
        "initial": as_lists(tables),
        "synchronous": synchronously,
        "evicting_sync": evicting(
            strategy, lambda: sync(tf.keras.optimizers.Adam(0.05))
        ),
    }
    if num_servers:
        results |= {
            "servers": num_servers,
            "folder": folder,
            "own_batches": by_workers_with_own_batches(strategy, tables),
            "asynchronous": asynchronous(strategy),
            "messages": messages(strategy),
            "evicting_async": evicting(strategy, ASYNCHRONOUS["adam_async"]),
            "checkpoints": checkpoints(strategy, folder),
            "restored": restored(strategy, folder),
        }
    return results


def main():
    folder, num_servers, *only_restores = (json.loads(x) for x in sys.argv[1:])
    strategy = make_strategy() if num_servers else tf.distribute.get_strategy()
    programs.report(
        restored(strategy, folder)
        if only_restores
        else trained(strategy, folder, num_servers)
    )


if __name__ == "__main__":
    main()
