"""Variables are made on the parameter server with the fewest bytes so far."""

import gc
import random
import re
from unittest import mock

import clusters
import keras_sync_replicas
import numpy as np
import programs
import pytest
import tensorflow as tf
from keras_variants import native

import tf_syncrep as tfs
from tf_syncrep.python.keras import cluster, placement
from tf_syncrep.python.keras.tables import placed_bytes
from tf_syncrep.python.report import command, summary

SERVERS = 3
WIDTH = 256


def variable(rows, trainable=True):
    return tf.Variable(tf.zeros([rows, 2]), trainable=trainable)


@pytest.mark.parametrize("seed", range(20))
def test_servers_differ_by_the_largest_variable_at_most(seed):
    draw = random.Random(seed)
    servers = placement._Placement(draw.choice([2, 3, 7]))
    kept, largest = [], 0
    for _ in range(200):
        made = variable(draw.choice([1, 5, 1000]), trainable=draw.random() < 0.7)
        kept.append(made)
        server = servers.choose()
        assert servers._bytes[server] == min(servers._bytes)
        servers.note(made, server)
        largest = max(
            largest, int(made.shape.num_elements()) * 8 * (3 if made.trainable else 1)
        )
        assert max(servers._bytes) - min(servers._bytes) <= largest


def test_scalars_of_an_optimizer_are_with_most_of_what_it_trains():
    servers = placement._Placement(2)
    kept = variable(2), variable(1000)
    servers.note(kept[0], 0)
    servers.note(kept[1], 1)
    assert servers.choose(is_scalar=True) == 1


def test_what_is_gone_does_not_count():
    servers = placement._Placement(2)
    large, small = variable(1000), variable(1)
    servers.note(large, 0)
    servers.note(small, 1)
    assert servers.choose() == 1
    del large
    gc.collect()
    assert servers.choose() == 0


def test_parts_of_a_table_are_on_servers_of_their_own_whatever_these_hold():
    servers = placement._Placement(3)
    large, found = variable(1000), []
    servers.note(large, 1)
    with servers.in_turn():
        for rows in (2, 1, 1):
            large = [large, variable(rows)]
            found.append(servers.choose())
            servers.note(large[1], found[-1])
    assert found == [0, 1, 2]
    assert servers.choose() == 2


def test_an_optimizer_that_cannot_be_read_disturbs_nothing():
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with (
        mock.patch.object(
            placed_bytes, "slots_by_variable", side_effect=TypeError("x")
        ),
        mock.patch.object(placed_bytes.logging, "warning") as warning,
    ):
        assert placed_bytes.placed_bytes(model) == {}
    assert str(warning.call_args.args[1]) == "x"


OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.01),
    "adam_async": lambda: tfs.keras.AdamAsync(0.01),
    "sync": lambda: tfs.keras.SyncReplicas(tf.keras.optimizers.SGD(0.01, 0.9), 1),
}


class Table(tf.keras.layers.Layer):
    """Tables in parts, which are made when the layer around is asked for shapes."""

    def __init__(self):
        super().__init__(name="table")
        self.inner = tfs.keras.Embedding(50, 8, name="inner", shards=SERVERS)
        self.grows = tfs.keras.Embedding(tfs.keras.Dynamic(64), 8, name="grows")

    def call(self, inputs):
        ids = tf.cast(inputs > 0, tf.int64)
        return tf.reduce_mean(self.inner(ids) + self.grows(ids), axis=1)


def make_model():
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential(
        [
            layers.Input((WIDTH,)),
            layers.Dense(WIDTH, name="a"),
            layers.BatchNormalization(name="b"),
            layers.Dense(WIDTH, name="c"),
            layers.Dense(WIDTH, name="d"),
            Table(),
            layers.Dense(1, name="e"),
        ]
    )


def batches(context):
    del context
    x = np.linspace(-1, 1, 8 * WIDTH, dtype=np.float32).reshape(8, WIDTH)
    return tf.data.Dataset.from_tensors((x, np.ones((8, 1), np.float32))).repeat()


def trained(name, folder, log_dir=None, epochs=1, in_turn=False):
    """Trains from a checkpoint, if there is one; tells where everything is."""
    if in_turn:
        cluster.place_by_bytes = lambda *args: None
    strategy = keras_sync_replicas.make_strategy()
    with strategy.scope():
        model = make_model()
        model.compile(OPTIMIZERS[name](), "mse")
    callbacks = [tfs.keras.Checkpoint(folder)]
    if log_dir:
        callbacks.append(tfs.keras.SyncReport(log_dir, verbose=0))
    with mock.patch.object(placed_bytes.logging, "info") as info:
        tfs.keras.fit(
            *(model, batches),
            epochs=epochs,
            steps_per_epoch=2,
            verbose=0,
            callbacks=callbacks,
        )
    parts = model.get_layer("table").inner._tables.all_variables()
    return {
        "placed": placed_bytes.placed_bytes(model),
        "logged": [call.args[1] for call in info.call_args_list],
        "parts": [tf.DeviceSpec.from_string(native(x).device).task for x in parts],
        "weights": [np.asarray(x).tolist() for x in model.get_weights()],
    }


@pytest.mark.ci
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_servers_hold_as_many_bytes_with_any_optimizer(tmp_path, name):
    with clusters.Cluster(1, SERVERS) as servers:
        log_dir = tmp_path / "log" if name == "sync" else None
        arguments = (name, str(tmp_path / "run"), log_dir and str(log_dir))
        result = programs.call(trained, *arguments, env=servers.environment())
    sizes = [sum(x.values()) for x in result["placed"].values()]
    assert len(sizes) == SERVERS
    assert max(sizes) <= 1.1 * min(sizes)
    (line,) = result["logged"]
    assert re.findall(r"(ps:\d) [\d.]+ MiB \(", line) == [*result["placed"]]
    variables = dict(x for y in result["placed"].values() for x in y.items())
    (kernel,) = [x for name, x in variables.items() if name.endswith("a/kernel")]
    assert not any("grows" in name for name in variables)
    slots = 1 if name == "sync" else 2
    assert kernel == pytest.approx((1 + slots) * WIDTH * WIDTH * 4, rel=1e-4)
    assert sorted(result["parts"]) == [*range(SERVERS)]
    if log_dir:
        found, _ = command.read(str(log_dir))
        assert found.placement == result["placed"]
        lines = summary.placement(found).splitlines()
        assert [line.split()[0] for line in lines] == ["server", *result["placed"]]


@pytest.mark.ci
def test_checkpoints_are_restored_into_another_placement(tmp_path):
    with clusters.Cluster(1, SERVERS) as servers:
        env = servers.environment()
        straight = (*("adam", str(tmp_path / "straight"), None, 2),)
        expected = programs.call(trained, *straight, env=env)
        first = ("adam", str(tmp_path / "run"), None, 1, True)
        before = programs.call(trained, *first, env=env)
        sizes = [sum(x.values()) for x in before["placed"].values()]
        assert max(sizes) > 1.5 * min(sizes)  # as TensorFlow places
    with clusters.Cluster(1, 2) as servers:
        again = ("adam", str(tmp_path / "run"), None, 2)
        found = programs.call(trained, *again, env=servers.environment())
    assert len(found["placed"]) == 2
    for actual, wanted in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
