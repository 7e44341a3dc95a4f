"""A table that is larger than any parameter server may be."""

import pathlib
import re
import resource

import clusters
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

WIDTH, STEPS = 64, 20
SERVERS = 4
ALLOWED_BYTES = 640 * 2**20

pytestmark = pytest.mark.slow


def train(rows):
    """The loss before and after some steps, and the parts' devices."""
    table = tfs.keras.TableConfig("table", rows, WIDTH, "zeros")
    with make_strategy().scope():
        model = tf.keras.Sequential(
            [
                tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("ids", table)),
                tf.keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="ones", trainable=False
                ),
            ]
        )
        # That of Keras 2 makes slots, and on the coordinator.
        model.compile(tfs.keras.SGD(1.0), loss="mse")
    # The rows are spread from the first to the last. Each step halves an example's
    # error.
    ids = np.linspace(0, rows - 1, 256).astype(np.int64).reshape([64, 4])
    targets = np.sin(np.arange(64.0)).reshape([64, 1])
    data = keras_variants.for_ever(ids, targets)
    history = tfs.keras.fit(model, data, epochs=2, steps_per_epoch=STEPS, verbose=0)
    parts = model.layers[0].trainable_variables
    return history.history["loss"], [keras_variants.native(x).device for x in parts]


def data_bytes(pid):
    """How much memory a process has for data."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return 1024 * int(re.search(r"VmData:\s+(\d+) kB", status).group(1))


def test_table_twice_as_large_as_a_server_may_be_is_trained():
    table_bytes = 2 * ALLOWED_BYTES
    with clusters.Cluster(num_workers=1, num_ps=SERVERS) as cluster:
        # A server answers before it has all of its threads, whose stacks count.
        for name in cluster.names("ps"):
            cluster.wait_for_output(name, "serving ps")
        pids = [cluster.pid(name) for name in cluster.names("ps")]
        before = [data_bytes(pid) for pid in pids]
        for pid, num_bytes in zip(pids, before, strict=True):
            limit = num_bytes + ALLOWED_BYTES
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
        rows = table_bytes // (4 * WIDTH)
        losses, devices = programs.call(train, rows, env=cluster.environment())
        after = [data_bytes(pid) for pid in pids]
    assert len(set(devices)) == SERVERS
    assert losses[1] < 1e-6 < 0.01 < losses[0]
    for first, last in zip(before, after, strict=True):
        assert table_bytes / SERVERS <= last - first <= ALLOWED_BYTES
