"""Tables that grow on clusters whose tasks are stopped, killed, and out of disk."""

import pathlib
import resource
import time

import clusters
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
import waiting
import worker_seams
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.keras.tables.row_slots import row_slots

WIDTH = 8
# Of two servers, each has so many that a maintenance of them takes several turns.
NUM_KEYS = 24_000


def make(strategy, size):
    """Sums of a table's vectors."""
    table = tfs.keras.TableConfig("items", size, WIDTH, combiner="sum")
    with strategy.scope():
        layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("item", table))
        model = tf.keras.Sequential([tf.keras.Input((None,), dtype="int64"), layer])
        model.compile(tfs.keras.AdamAsync(0.5), loss="mse")
        model(tf.zeros([1, 1], tf.int64))
        model.optimizer.build(model.trainable_variables)
    return model


def ask(line, folder):
    """Has the test do something."""
    print(line, flush=True)
    waiting.until((pathlib.Path(folder) / line.replace(" ", "_").lower()).exists)


def table_of(model):
    return model.layers[0].get_embedding_tables()["items"]


def stats_of(model):
    return model.layers[0].table_stats()["items"]


def slots_of(model):
    by_part = row_slots([model.optimizer], model.layers[0]._growing).values()
    return [slot.variable.numpy() for slots in by_part for slot in slots]


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
    stop = pathlib.Path(folder) / "stop"
    stop.touch()
    slow = schedule([1, 2], 1e6, str(stop))
    waiting.until(lambda: stats_of(model)["rows"] == 2)
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


def train(model, keys):
    keys = np.resize(np.asarray(keys), [4, -(-len(keys) // 4)])
    targets = np.ones([4, WIDTH], np.float32)

    data = keras_variants.for_ever(keys, targets)
    tfs.keras.fit(model, data, steps_per_epoch=3, verbose=0)


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
    path = f"{folder}/checkpoints"
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

    def maintain():
        for now in (1000, 5000):
            tfs.keras.maintain_tables(model, now)

    maintenance = waiting.in_thread(maintain)
    evicted = waiting.until(lambda: stats_of(model)["evicted"])
    ask("KILL A SERVER", folder)
    error = maintenance.exception(clusters.DEADLINE_SECS)
    return {
        "full": full,
        "before": before,
        "trained": trained,
        "saved": saved,
        "evicted": evicted,
        "error": type(error).__name__,
    }


def restoring(folder):
    """Goes on behind that."""
    model = large(make_strategy())
    path = f"{folder}/checkpoints"
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


class Coordinator:
    """A process that calls a function, and asks for things by output and files."""

    def __init__(self, cluster, function, folder):
        self.cluster, self.folder = cluster, folder
        cluster.start("chief", programs.call_command(function, str(folder)))

    def await_request(self, line):
        self.cluster.wait_for_output("chief", line)

    def done(self, line):
        (self.folder / line.replace(" ", "_").lower()).touch()

    def result(self):
        assert self.cluster.wait("chief") == 0, self.cluster.output("chief")
        return programs.result_in(self.cluster.output("chief"))


def test_gradient_of_a_worker_that_was_stopped_never_reaches_the_new_key(tmp_path):
    with clusters.Cluster(2, num_ps=1, env=programs.environment()) as cluster:
        coordinator = Coordinator(cluster, suspended, tmp_path)
        coordinator.await_request("STOP IT")
        cluster.suspend(worker_at_lookup(cluster))
        coordinator.done("STOP IT")
        coordinator.await_request("HANDED OUT")
        coordinator.done("HANDED OUT")
        cluster.resume(worker_at_lookup(cluster))
        result = coordinator.result()
    assert result["keys"] == [[3, 4], [3, 4]]
    assert result["has_learned"]
    assert result["same_vectors"]
    assert result["same_slots"]
    before, after = result["stats"]
    assert (before["evicted"], before["dropped"]) == (2, 0)
    assert after == {**before, "dropped": 2}


def worker_at_lookup(cluster):
    """The one that has looked up; its server may have answered before it says so."""
    return waiting.until(
        lambda: next(
            (x for x in cluster.names("worker") if "at lookup" in cluster.output(x)),
            None,
        )
    )


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """What came of a program whose disk and server failed, and of the next one."""
    folder = tmp_path_factory.mktemp("faults")
    with clusters.Cluster(2, num_ps=2, env=programs.environment()) as cluster:
        coordinator = Coordinator(cluster, failing, folder)
        coordinator.await_request("FILL THE DISK")
        limits = resource.prlimit(cluster.pid("ps-1"), resource.RLIMIT_FSIZE)
        for what, limit in (("FILL THE DISK", 4096), ("MAKE ROOM", limits[0])):
            coordinator.await_request(what)
            resource.prlimit(
                cluster.pid("ps-1"), resource.RLIMIT_FSIZE, (limit, limits[1])
            )
            coordinator.done(what)
        coordinator.await_request("KILL A SERVER")
        cluster.kill("ps-0")
        killed = time.monotonic()
        coordinator.done("KILL A SERVER")
        failed = coordinator.result()
        secs = time.monotonic() - killed
        cluster.restart("ps-0")
        restored = Coordinator(cluster, restoring, folder).result()
    return failed, secs, restored


def test_full_disk_is_an_error_and_training_goes_on(faults):
    failed, _, restored = faults
    assert "too large" in failed["full"]
    assert len(failed["before"]["keys"]) == NUM_KEYS
    assert failed["trained"]["keys"] == sorted({*failed["before"]["keys"], 5, 6})
    assert failed["trained"]["sums"] != failed["before"]["sums"]
    assert failed["saved"]["keys"] == sorted({*failed["trained"]["keys"], 8})
    assert restored["restored"] == failed["saved"]


def test_server_that_dies_in_the_middle_of_a_maintenance_leaves_nothing_half(faults):
    failed, secs, restored = faults
    assert 0 < failed["evicted"] < NUM_KEYS
    assert hasattr(tf.errors, failed["error"])
    assert secs < 60  # The other server does not wait for its files any more.
    # All is as it was saved, and goes on; keys go when they are due, all of them.
    assert restored["restored"] == failed["saved"]
    assert restored["has_slots"]
    assert restored["left"] == [11, 12]
    assert restored["stats"]["evicted"] == NUM_KEYS + 4
