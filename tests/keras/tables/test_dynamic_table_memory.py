"""Tables that grow take memory for rows in use, and say when there is none."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

import clusters
import numpy as np
import process_threads
import programs
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

_ROOT = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def bounded(num_bytes: int) -> Iterator[pathlib.Path]:
    """A group whose processes get so much memory; one that asks for more is killed.

    It is within the group of this process. The test is skipped where no group can be
    made, which takes root, and with version 2 of control groups their memory controller
    in groups within this one.
    """
    parent, limit = _own_group()
    group = parent / f"tf_syncrep_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(num_bytes))
        except OSError as error:
            pytest.skip(f"no control group bounds memory here: {error}")
        yield group
    finally:
        group.rmdir()


def join(group: str | pathlib.Path, pid: int | None = None) -> None:
    """Moves a process, by default this one, into the group of a folder.

    What memory it has already does not count.
    """
    pathlib.Path(group, "cgroup.procs").write_text(str(pid or os.getpid()))


def _own_group():
    """The group of this process, and the file with a group's limit."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
    # The last line is that of version 2.
    return _ROOT / path.lstrip("/"), "memory.max"


MAX_ROWS, WIDTH, BATCH = 50_000_000, 16, 100_000
TARGETS = np.ones([BATCH, 1], np.float32)
OPTIMIZERS = {
    "AdamAsync": tfs.keras.AdamAsync,
    "Adagrad": lambda: tfs.keras.Adagrad(initial_accumulator_value=0),
    "FTRL": lambda: tfs.keras.FTRL(initial_accumulator_value=0),
    "RowwiseAdagrad": tfs.keras.RowwiseAdagrad,
    "SGD": lambda: tfs.keras.SGD(momentum=0.9),
}
ALLOWED_BYTES = 640 * 2**20


def make_model(optimizer, max_rows=MAX_ROWS):
    table = tfs.keras.TableConfig("items", tfs.keras.Dynamic(max_rows), WIDTH)
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("ids", table))
    model = tf.keras.Sequential(
        [tf.keras.Input([1], dtype="int64"), layer, tf.keras.layers.Dense(1)]
    )
    model.compile(optimizer, loss="mse")
    return model


def batch(number):
    return np.arange(number * BATCH, (number + 1) * BATCH).reshape([-1, 1])


def bytes_of_each_optimizer():
    """Those that it takes to build for all rows, and to train the first of them."""
    # The first training in a process takes memory that has nothing to do with tables.
    first = make_model(tfs.keras.AdamAsync(), 2 * BATCH)
    first.train_on_batch(batch(0), TARGETS)
    taken = {}
    for name, make in OPTIMIZERS.items():
        before = process_threads.resident()
        model = make_model(make())
        model.train_on_batch(batch(0), TARGETS)
        taken[name] = process_threads.resident() - before
        del model
    return taken


def dataset(first, number=1):
    """Batches of ids."""

    def make(i):
        return tf.range(i * BATCH, (i + 1) * BATCH)[:, tf.newaxis], TARGETS

    return tf.data.Dataset.range(first, first + number).map(make)


def train_to_the_end(strategy):
    """Trains on ever new ids until there is no memory for their rows, and after it."""
    with strategy.scope():
        model = make_model(tfs.keras.AdamAsync())

    def error_of(data):
        return programs.error_of(tfs.keras.fit, model, data, verbose=0)

    def rows():
        return int(model.layers[0].table_stats()["items"]["rows"])

    def predict():
        return tfs.keras.predict(model, dataset(0).map(lambda ids, _: ids), verbose=0)

    message = error_of(dataset(0, MAX_ROWS // BATCH))
    trained, before = rows(), predict()
    of_known_ids = error_of(dataset(0))
    after = predict()
    return {
        "message": message,
        "rows": trained,
        "of_known_ids": of_known_ids,
        "changed": int(np.count_nonzero(after != before)),
        "of_new_ids": error_of(dataset(trained // BATCH)),
        "rows_after": rows(),
    }


def train_in(group):
    """In a control group, or on a cluster whose server is in one, without a group."""
    if group is None:
        return train_to_the_end(make_strategy())
    join(group)
    return train_to_the_end(tf.distribute.get_strategy())


def test_slots_that_begin_at_zero_take_memory_once_rows_are_used():
    taken = programs.call(bytes_of_each_optimizer)
    assert set(taken) >= {"AdamAsync", "RowwiseAdagrad"}
    # A slot with one number for each of the rows has 4 bytes of each.
    assert {k: v for k, v in taken.items() if v >= 3 * MAX_ROWS} == {}


def assert_ended_well(found):
    assert found["message"].startswith("ResourceExhaustedError")
    assert "There is no memory for 100000 more rows of items" in found["message"]
    assert f"of {ALLOWED_BYTES >> 20} MB are left" in found["message"]
    assert found["rows"] > 500_000
    assert found["rows"] % 100_000 == 0  # nothing of the batch that failed
    assert found["of_known_ids"] == ""
    assert found["changed"] > 0
    assert "There is no memory for" in found["of_new_ids"]
    assert found["rows_after"] == found["rows"]


@pytest.mark.ci
def test_memory_that_runs_out_is_an_error_and_the_rows_stay():
    with bounded(ALLOWED_BYTES) as group:
        assert_ended_well(programs.call(train_in, str(group)))


@pytest.mark.slow
def test_server_whose_memory_runs_out_says_so_and_goes_on():
    with (
        bounded(ALLOWED_BYTES) as group,
        clusters.Cluster(1, num_ps=1) as cluster,
    ):
        join(group, cluster.pid("ps-0"))
        env = cluster.environment()
        assert_ended_well(programs.call(train_in, None, env=env))
        assert cluster.status("ps-0") is None
