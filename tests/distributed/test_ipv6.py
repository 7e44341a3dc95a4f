"""A cluster whose tasks have IPv6 addresses."""

import re
import socket

import clusters
import keras_sync_replicas
import numpy as np
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.distribute import script, wire

pytestmark = pytest.mark.ci

LOOPBACK = "[::1]"


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def train():
    """Trains by fit, and returns the number of steps."""
    with keras_sync_replicas.make_strategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
        model.compile(tfs.keras.AdamAsync(0.1), loss="mse")
    ones = np.ones([2, 3], np.float32)
    data = tf.data.Dataset.from_tensors((ones, ones)).repeat()
    tfs.keras.fit(model, data, epochs=2, steps_per_epoch=8, verbose=0)
    return int(model.optimizer.iterations.numpy())


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_tasks_with_ipv6_addresses_talk_by_the_protocol(monkeypatch):
    command = script.server_command("fd00::/8")  # and this machine
    monkeypatch.delenv(wire.VARIABLE, raising=False)
    tells = {"TF_CPP_MIN_LOG_LEVEL": "0", **programs.environment()}
    with clusters.Cluster(1, 1, serving=(), host=LOOPBACK) as cluster:
        for name in ("worker-0", "ps-0"):
            cluster.start(name, command, from_fork_server=False, env=tells)
        cluster.wait_until_ready()
        assert cluster.address("ps-0").startswith(LOOPBACK)
        env = cluster.environment() | {wire.VARIABLE: wire.WIRE}
        assert programs.call(train, env=env) == 16
        said = re.findall(r"with /job:(\w+)/.*?: (yes|no)", cluster.output("ps-0"))
    assert set(said) == {("chief", "yes"), ("worker", "yes")}
