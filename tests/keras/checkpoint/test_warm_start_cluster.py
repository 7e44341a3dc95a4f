"""A model on a cluster that begins with what fits it of one on another cluster."""

import pathlib
import re

import clusters
import numpy as np
import programs
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy
from keras_variants import native
from warm_models import make, tables_of

import tf_syncrep as tfs

ROWS, WIDTH = 2**23, 64
SERVERS = 3


def data(context=None):
    del context
    draw = np.random.default_rng(0)
    ids = draw.integers(0, 40, (16, 2))
    return tf.data.Dataset.from_tensors((ids, draw.normal(size=(16, 1)))).repeat()


def trained(sizes, folder, source):
    """Trains, and returns the tables at the beginning and at the end."""
    sizes = {
        name: tfs.keras.Dynamic(size) if name == "item" else size
        for name, size in sizes.items()
    }
    with make_strategy().scope():
        model = make(sizes)
    checkpoint = tfs.keras.Checkpoint(folder, model=model, warm_start=source)
    checkpoint.restore()
    began = as_lists(model)
    tfs.keras.fit(
        model, data, epochs=1, steps_per_epoch=6, callbacks=[checkpoint], verbose=0
    )
    report = checkpoint.warm_started
    tf.train.Checkpoint(model=model).save(f"{folder}-objects/saved")
    return began, as_lists(model), report and {x.name: x.status for x in report.lines}


def as_lists(model):
    """Its tables and slots; rows of those that grow as pairs, by key."""
    return {
        name: sorted([key, row.tolist()] for key, row in values.items())
        if isinstance(values, dict)
        else values.tolist()
        for name, values in tables_of(model).items()
    }


@pytest.mark.ci
@pytest.mark.parametrize("source", ["old", "old-objects"])
def test_each_server_takes_its_own_rows(source, tmp_path):
    """Two servers, then three; tables of both kinds grow."""
    with clusters.Cluster(num_workers=1, num_ps=2) as cluster:
        sizes = {"user": 41, "item": 100}
        _, old, report = programs.call(
            trained, sizes, str(tmp_path / "old"), None, env=cluster.environment()
        )
        assert report is None
    with clusters.Cluster(num_workers=1, num_ps=SERVERS) as cluster:
        sizes = {"user": 50, "item": 200}
        began, _, report = programs.call(
            trained,
            sizes,
            str(tmp_path / "new"),
            str(tmp_path / source),
            env=cluster.environment(),
        )
    assert report["tables/user"] == "in part"
    assert report["tables/item"] == "taken"
    for name, values in old.items():
        assert values
        assert began[name][: len(values)] == values, name
        assert len(began[name]) == len(values) + 9 * name.endswith("user")


def large(rows):
    """A model with one large table."""
    table = tfs.keras.TableConfig("table", rows, WIDTH, "zeros")
    with make_strategy().scope():
        inputs = tf.keras.Input((), dtype="int64")
        layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("ids", table))
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(layer(inputs)))
        model.compile(tfs.keras.SGD(1.0), loss="mse")
    return model, layer


def save_large(folder, as_objects):
    model, layer = large(ROWS)
    for i, part in enumerate(map(native, layer.trainable_variables)):
        rows = tf.range(tf.shape(part)[0], dtype=tf.int32)
        with tf.device(part.device):
            part.assign(tf.tile(tf.cast(rows, tf.float32)[:, None] + i, [1, WIDTH]))
    if as_objects:
        tf.train.Checkpoint(model=model).save(f"{folder}/saved")
    else:
        tfs.keras.Checkpoint(folder, model=model).save(wait=True)


def take_large(folder, pids):
    """Returns how much memory each server had before, and at most."""
    model, layer = large(ROWS + 7)
    before = []
    for pid in pids:
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
        before.append(memory(pid, "VmHWM"))
    tfs.keras.warm_start(model, folder)
    most = [memory(pid, "VmHWM") for pid in pids]
    for i, part in enumerate(map(native, layer.trainable_variables)):
        rows = np.arange(0, ROWS // SERVERS, 10_007)
        ids = rows * SERVERS + i
        found = tf.gather(part, rows)[:, :1].numpy()[:, 0]
        np.testing.assert_array_equal(found, ids.astype(np.float32))
    return before, most


def memory(pid, what):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return 1024 * int(re.search(rf"{what}:\s+(\d+) kB", status).group(1))


@pytest.mark.slow
@pytest.mark.parametrize("as_objects", [False, True])
def test_a_server_needs_a_chunk_beside_its_third_of_2_gb(as_objects, tmp_path):
    """TensorFlow's checkpoints are read as TensorFlow does: a variable at once."""
    with clusters.Cluster(num_workers=1, num_ps=1) as cluster:
        programs.call(save_large, str(tmp_path), as_objects, env=cluster.environment())
    with clusters.Cluster(num_workers=1, num_ps=SERVERS) as cluster:
        pids = [cluster.pid(name) for name in cluster.names("ps")]
        before, most = programs.call(
            take_large, str(tmp_path), pids, env=cluster.environment()
        )
    # The part may have taken no memory before it was written.
    whole = ROWS * WIDTH * 4
    chunk = as_objects * whole + 64 * 2**20
    for first, last in zip(before, most, strict=True):
        assert last - first < whole / SERVERS + chunk
