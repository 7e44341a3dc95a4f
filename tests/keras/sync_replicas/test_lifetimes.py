"""Nothing of a synchronous training remains on parameter servers that outlive it."""

import gc

import clusters
import compat
import keras_sync_replicas as helpers
import process_threads
import programs
import pytest
import tensorflow as tf
from waiting import until

import tf_syncrep as tfs

pytestmark = [pytest.mark.one_version, pytest.mark.slow, pytest.mark.timeout(900)]

TABLES = 3
# A dense gradient of 8 MB.
FEATURES, UNITS = 2048, 1024
BATCH = 4
STEPS = 4
LEASE_THREADS = "tfs_leases"
# How many trainings a coordinator makes before its server is measured: by then the
# server has everything that is made only once.
FIRST = 3
# TensorFlow's own threads, for each coordinator of which a server has heard: those of
# its client for the other tasks never end.
CLIENT_THREADS = 4
# Threads of pools that are started when they are first needed.
POOL_THREADS = 2
# TensorFlow's own memory, for each training: servers keep a part of each function. One
# accumulator of these trainings has 8 MB.
FUNCTIONS_MB = 6


def make_model():
    layers = tf.keras.layers
    rows = layers.Input((TABLES,), dtype="int32")
    features = layers.Input((FEATURES,))
    looked_up = [tfs.keras.Embedding(1000, 8)(rows[:, i]) for i in range(TABLES)]
    hidden = layers.Dense(UNITS)(features)
    outputs = layers.Dense(1)(layers.Concatenate()([*looked_up, hidden]))
    return tf.keras.Model([rows, features], outputs)


def batches(item):
    rows = tf.fill([BATCH, TABLES], tf.cast(item, tf.int32))
    inputs = (rows, tf.ones([BATCH, FEATURES]))
    return tf.data.Dataset.from_tensors((inputs, tf.ones([BATCH, 1])))


class Tell(tf.keras.callbacks.Callback):
    """Says that an epoch has ended."""

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", flush=True)


def train(strategy, epochs):
    """Two trainings, the second of which uses the same gate and accumulators."""
    with strategy.scope():
        queue = tfs.data.WorkQueue(100, num_epochs=None)
        model = make_model()
        optimizer = tfs.keras.SyncReplicas(helpers.OPTIMIZERS["sgd"](), 2)
        model.compile(optimizer, loss="mse")
    options = {"steps_per_epoch": STEPS, "verbose": 0}
    for _ in range(2):
        tfs.keras.fit(
            model,
            lambda _: queue.dataset(batches),
            epochs=epochs,
            callbacks=[Tell()],
            **options,
        )
    assert helpers.iterations_of(optimizer) == 2 * epochs * STEPS // 2


def run(trainings, keep_alive_secs, is_killed):
    """Trains synchronously so often, with a new model each time.

    Servers give up a coordinator that has been silent for `keep_alive_secs`. One that
    `is_killed` goes on training.
    """
    compat.set_keep_alive(keep_alive_secs)
    strategy = helpers.make_strategy()
    for _ in range(trainings):
        train(strategy, epochs=1)
        # A model and the functions traced from it refer to each other.
        gc.collect()
        print("trained", flush=True)
    if is_killed:
        train(strategy, epochs=1_000_000)


class Server:
    """What a server holds, according to the kernel."""

    def __init__(self, pid):
        self._pid = pid

    def lease_threads(self):
        """How many threads of gates and queues there are."""
        return len(process_threads.threads_named(LEASE_THREADS, self._pid))

    def other_threads(self):
        threads = process_threads.threads(self._pid)
        return sum(status["Name"] != LEASE_THREADS for _, status in threads)

    def megabytes(self):
        return process_threads.resident(self._pid) / 2**20

    def wait_until_no_lease_threads(self):
        until(lambda: not self.lease_threads(), self.lease_threads)


class Coordinators:
    """Coordinators of one cluster, one after the other."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.number = 0

    def start(self, trainings, keep_alive_secs=600, is_killed=False):
        self.number += 1
        arguments = trainings, keep_alive_secs, is_killed
        self._cluster.start("chief", programs.call_command(run, *arguments))

    def start_and_kill(self):
        epochs = self._cluster.output("chief").count("epoch")
        self.start(trainings=0, is_killed=True, keep_alive_secs=2)
        self._cluster.wait_for_output("chief", "epoch", epochs + 2)
        self._cluster.kill("chief")


def test_fifty_trainings_leave_threads_and_memory_of_a_server_as_they_were():
    with clusters.Cluster(num_workers=2, num_ps=1) as cluster:
        server = Server(cluster.pid("ps-0"))
        coordinators = Coordinators(cluster)
        # Each optimizer makes two trainings.
        coordinators.start(trainings=24)
        cluster.wait_for_output("chief", "trained", FIRST)
        threads, megabytes = server.other_threads(), server.megabytes()
        for number in range(FIRST + 1, 25):
            cluster.wait_for_output("chief", "trained", number)
        assert cluster.wait("chief") == 0, cluster.output("chief")
        # It has not told the server that it ends, and is not taken for dead yet.
        server.wait_until_no_lease_threads()
        assert server.other_threads() <= threads + POOL_THREADS
        assert server.megabytes() <= megabytes + 24 * FUNCTIONS_MB
        for _ in range(3):
            coordinators.start_and_kill()
            server.wait_until_no_lease_threads()
        of_tensorflow = POOL_THREADS + CLIENT_THREADS * coordinators.number
        assert server.other_threads() <= threads + of_tensorflow
        assert server.megabytes() <= megabytes + 27 * FUNCTIONS_MB
