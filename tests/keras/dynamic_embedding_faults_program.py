"""Trains tables that grow on a cluster whose tasks are stopped, killed and out of disk.

Arguments: what to do, and a folder, in which the test says by files that it is done
with what it was asked for.
"""

import json
import pathlib
import sys
import threading
import time

import clusters
import keras_variants
import numpy as np
import programs
import tensorflow as tf
import worker_seams
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.keras.tables.row_slots import row_slots

WIDTH = 8
# Of two servers, each has so many that a maintenance of them takes several turns.
NUM_KEYS = 24_000


class Model(tf.keras.Model):
    """Sums of a table's vectors."""

    def __init__(self, size):
        super().__init__()
        table = tfs.keras.TableConfig("items", size, WIDTH, combiner="sum")
        self.embedding = tfs.keras.DistributedEmbedding(
            tfs.keras.FeatureConfig("item", table)
        )

    def call(self, ids, training=None):
        return self.embedding(ids, training=training)


def make(strategy, size):
    with strategy.scope():
        model = Model(size)
        model.compile(tfs.keras.AdamAsync(0.5), loss="mse")
        model(tf.zeros([1, 1], tf.int64))
        model.optimizer.build(model.trainable_variables)
    return model


def ask(line, folder):
    """Has the test do something."""
    print(line, flush=True)
    until((folder / line.replace(" ", "_").lower()).exists)


def until(condition):
    deadline = time.monotonic() + clusters.DEADLINE_SECS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def table_of(model):
    return model.embedding.get_embedding_tables()["items"]


def stats_of(model):
    return model.embedding.table_stats()["items"]


def slots_of(model):
    by_part = row_slots([model.optimizer], model.embedding._growing).values()
    return [slot.variable.numpy() for x in by_part for slot in x.values()]


def suspended(folder):
    """One worker looks two keys up, and is stopped until others have their rows."""
    tfs.keras.isolate_workers()
    strategy = make_strategy()
    model = make(strategy, tfs.keras.Dynamic(2, unused_for=5))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    (variable,) = model.trainable_variables

    def step(keys, factor, path):
        with tf.GradientTape() as tape:
            vectors = model(keys, training=True)
            with tf.control_dependencies([vectors]):
                path = tf.identity(path)
            with tf.control_dependencies([wait_while_there_is(path)]):
                factor = tf.identity(factor)  # which is the gradient
            loss = factor * tf.reduce_sum(vectors)
        gradient = tape.gradient(loss, keras_variants.native(variable))
        model.optimizer.apply_gradients([(gradient, variable)])
        return loss

    @tf.function
    def on_worker(*args):
        return strategy.run(step, args=args)

    def schedule(keys, factor, path):
        args = tf.constant([keys], tf.int64), tf.constant(factor), tf.constant(path)
        return coordinator.schedule(on_worker, args=args)

    # TensorFlow tells all tasks of a function that is new, and would wait for that one.
    tfs.keras.maintain_tables(model, 0)
    table_of(model)
    slots_of(model)
    stop = folder / "stop"
    stop.touch()
    slow = schedule([1, 2], 1e6, str(stop))
    until(lambda: stats_of(model)["rows"] == 2)
    ask("STOP IT", folder)
    for now in (1, 7, 8):
        tfs.keras.maintain_tables(model, now)
    schedule([3, 4], 1.0, "").fetch()
    before, slots = table_of(model), slots_of(model)
    stats = stats_of(model)
    ask("HANDED OUT", folder)
    stop.unlink()
    slow.fetch()
    after = table_of(model)
    return {
        "keys": [before.keys.tolist(), after.keys.tolist()],
        "has_learned": all(np.any(value) for value in slots),
        "same_vectors": bool(np.array_equal(before.vectors, after.vectors)),
        "same_slots": all(map(np.array_equal, slots, slots_of(model))),
        "stats": [stats, stats_of(model)],
    }


def wait_while_there_is(path):
    with tf.device(None), tf.device("/device:CPU:0"):

        def wait(i):
            told = tf.cond(i == 0, lambda: tf.print("at lookup"), tf.no_op)
            with tf.control_dependencies([told, worker_seams.sleep(0.02)]):
                return i + 1

        return tf.while_loop(
            lambda _: tf.size(tf.io.matching_files(path)) > 0, wait, [tf.constant(0)]
        )[0]


def train(model, keys, steps=3):
    keys = np.resize(np.asarray(keys), [4, -(-len(keys) // 4)])
    targets = np.ones([4, WIDTH], np.float32)

    def dataset(context=None):
        del context
        return tf.data.Dataset.from_tensors((keys, targets)).repeat()

    tfs.keras.fit(model, dataset, steps_per_epoch=steps, verbose=0)


def state_of(model):
    table = table_of(model)
    return {
        "keys": table.keys.tolist(),
        "sums": np.float64(table.vectors).sum(1).tolist(),
    }


def large(strategy):
    # Nobody goes before the test says so.
    return make(strategy, tfs.keras.Dynamic(2 * NUM_KEYS, unused_for=1000))


def failing(folder):
    """A disk is full, and then a server dies in the middle of a maintenance."""
    model = large(make_strategy())
    train(model, np.arange(NUM_KEYS) * 7**9)
    path = str(folder / "checkpoints")
    checkpoint = tfs.keras.Checkpoint(path, model=model, full_every=2)
    ask("FILL THE DISK", folder)
    try:
        checkpoint.save(wait=True)
        full = None
    except tf.errors.OpError as error:
        full = error.message
    before = state_of(model)
    train(model, [5, 6])
    trained = state_of(model)
    ask("MAKE ROOM", folder)
    checkpoint.save(wait=True)
    train(model, [5, 8])
    checkpoint.save(wait=True)
    saved = state_of(model)
    # So slowly that a maintenance has to wait for it.
    slow = tfs.keras.Checkpoint(
        path, model=model, max_bytes_per_sec=1e4, max_kept_bytes=1 << 19
    )
    slow.save()
    errors = []

    def maintain():
        try:
            for now in (1000, 5000):
                tfs.keras.maintain_tables(model, now)
        except tf.errors.OpError as error:
            errors.append(type(error).__name__)

    thread = threading.Thread(target=maintain)
    thread.start()
    until(lambda: stats_of(model)["evicted"])
    evicted = stats_of(model)["evicted"]
    ask("KILL A SERVER", folder)
    thread.join(clusters.DEADLINE_SECS)
    return {
        "full": full,
        "before": before,
        "trained": trained,
        "saved": saved,
        "evicted": evicted,
        "has_ended": not thread.is_alive(),
        "errors": errors,
    }


def restoring(folder):
    """Goes on behind that."""
    model = large(make_strategy())
    path = str(folder / "checkpoints")
    restored = tfs.keras.Checkpoint(path, model=model).restore()
    result = {"path": restored.path, "restored": state_of(model)}
    slots = slots_of(model)
    train(model, [5, 6, 11])
    for now in (5000, 10_000):
        tfs.keras.maintain_tables(model, now)
    train(model, [11, 12])
    return {
        **result,
        "has_slots": all(np.any(value) for value in slots),
        "left": table_of(model).keys.tolist(),
        "stats": stats_of(model),
    }


if __name__ == "__main__":
    what, path = (json.loads(x) for x in sys.argv[1:])
    programs.report(globals()[what](pathlib.Path(path)))
