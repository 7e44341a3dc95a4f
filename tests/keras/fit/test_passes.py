"""`fit` without `steps_per_epoch`, when workers read their own data to its end."""

import contextlib
import itertools
import os
import pathlib
import random
from typing import Any
from unittest import mock

import clusters
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
import waiting
from absl import logging
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.distribute import threads
from tf_syncrep.python.keras.fit import ends
from tf_syncrep.python.keras.fit.batches import WorkersPasses

BATCH = 4
ITEMS, PER_ITEM = 20, 3  # items of a work queue, and batches of an item
# Checkpoints also come at the ends of epochs, and soon after one another.
EPOCHS_OF_KILLS, KILLS_AT = 4, [8, 40, 58, 66, 110, 118, 160, 190]
WORKERS, PER_EXECUTION = 3, 4
PATIENCE = 100  # of a test that waits for longer


class Counting(tf.keras.Model):
    """Counts how often it saw each example, which its first feature numbers."""

    def __init__(self, num_examples):
        super().__init__()
        self.inner = tf.keras.layers.Dense(1)
        self.examples = tf.keras.metrics.Sum(name="examples")
        # It is in checkpoints, too.
        self.seen = self.add_weight(
            name="seen",
            shape=[num_examples],
            dtype="int64",
            initializer="zeros",
            trainable=False,
        )

    def call(self, x):
        return self.inner(x)

    def train_step(self, data: Any):
        x, _ = data
        logs = super().train_step(data)
        self.examples.update_state(tf.ones_like(x[:, 0]))
        ones = tf.ones([tf.shape(x)[0]], tf.int64)
        rows = tf.IndexedSlices(ones, tf.cast(x[:, 0], tf.int64))
        keras_variants.native(self.seen).scatter_add(rows)
        return {**logs, "examples": self.examples.result()}


def batches(first, number):
    """Batches of examples, counted from `first` on."""
    numbers = tf.data.Dataset.range(number * BATCH).map(lambda i: i + first)
    examples = numbers.map(
        lambda i: (tf.stack([tf.cast(i, tf.float32), 1.0]), tf.ones([1]))
    )
    return examples.batch(BATCH)


def of_item(item):
    return batches(item * BATCH * PER_ITEM, PER_ITEM)


class Steps(tf.keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_begin(self, batch, logs=None):
        self.epochs[-1].append([batch])

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1][-1].append(batch)


def make(strategy, num_examples, quorum=None, per_execution=1):
    with strategy.scope():
        model = Counting(num_examples)
        optimizer = tf.keras.optimizers.SGD(1e-6)
        if quorum:
            optimizer = tfs.keras.SyncReplicas(optimizer, quorum, quorum, spares=False)
        model.compile(optimizer, loss="mse", steps_per_execution=per_execution)
    return model


def train(strategy, data, num_examples, epochs, more=(), steps=None, **options):
    """Trains; returns the counts."""
    model = make(strategy, num_examples, **options)
    noted = Steps()
    history = tfs.keras.fit(
        model,
        data,
        epochs=epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[noted, *more],
    )
    for epoch in noted.epochs:
        assert all(b[0] == a[1] + 1 for a, b in itertools.pairwise(epoch))
    return {
        "seen": model.seen.numpy().tolist(),
        "epochs": history.epoch,
        "examples": history.history["examples"],
        "steps": [1 + epoch[-1][-1] for epoch in noted.epochs],
        "iterations": int(np.asarray(model.optimizer.iterations)),
    }


def uneven(strategy, **options):
    def data(context):
        worker = context.input_pipeline_id
        return batches(100 * worker, 7 * worker)  # the first one has no batches

    return train(strategy, data, 400, 2, **options)


def slow(strategy, folder):
    """The last worker's data is made late, where all others have come to their ends."""
    path, waited_for = (pathlib.Path(folder) / name for name in ("read", "pipe"))
    path.touch()
    ask, silences = WorkersPasses.is_made, 0

    class Block(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 0:  # After this process has read it.
                path.unlink()
                os.mkfifo(path)

    def is_made(passes):
        nonlocal silences
        made = ask(passes)
        silences += not made
        if silences == PATIENCE + 20 and not made:
            # TensorFlow's optimization of the worker's function waits for a writer.
            # Nobody can read a pipe by its name any more when that wait ends.
            path.rename(waited_for)
            path.touch()
            with contextlib.suppress(OSError):  # There may be no reader.
                os.close(os.open(waited_for, os.O_WRONLY | os.O_NONBLOCK))
        return made

    def data(context):
        worker = context.input_pipeline_id
        num_batches = 7 * worker
        if worker == context.num_input_pipelines - 1:
            text = tf.io.read_file(str(path))
            num_batches += tf.cast(tf.strings.length(text), tf.int64)
        return batches(100 * worker, num_batches)

    with (
        mock.patch.object(WorkersPasses, "is_made", is_made),
        mock.patch.object(ends, "_PATIENCE", PATIENCE),
    ):
        result = train(strategy, data, 400, 2, more=[Block()])
    return {**result, "silences": silences}


def queued(strategy, num_epochs, epochs, **options):
    with strategy.scope():
        queue = tfs.data.WorkQueue(ITEMS, num_epochs, shuffle=True)
    result = train(
        strategy,
        lambda _: queue.dataset(of_item),
        ITEMS * PER_ITEM * BATCH,
        epochs,
        **options,
    )
    return {**result, "stats": queue.stats()}


def served(strategy, number, epochs, has_width, **options):
    """All workers read one job of a tf.data service, which lives as long as this."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    _, address = dispatcher.target.split("://")
    servers = [dispatcher, service.WorkerServer(service.WorkerConfig(address))]

    def without_width(x, y):
        return tf.raw_ops.PlaceholderWithDefault(input=x, shape=[None, None]), y

    def data(_):
        dataset = batches(0, number)
        if not has_width:
            dataset = dataset.map(without_width)
        return dataset.apply(
            service.distribute(
                "distributed_epoch", servers[0].target, job_name="shared"
            )
        )

    return train(strategy, data, number * BATCH, epochs, **options)


def killed(strategy, epochs, folder, at, steps_meanwhile, **options):
    kills = AwaitKills(folder, at, steps_meanwhile)
    return queued(strategy, None, epochs, more=[kills], **options)


class AwaitKills(tf.keras.callbacks.Callback):
    """Asks for the deaths of workers, and makes at most a few steps until they come."""

    def __init__(self, folder, at, steps_meanwhile):
        super().__init__()
        self.folder, self.at = pathlib.Path(folder), at
        self.steps_meanwhile, self.steps = steps_meanwhile, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        for kill, step in enumerate(self.at):
            if self.steps == step:
                print(f"kill {kill}.", flush=True)
            if self.steps == step + self.steps_meanwhile:
                waiting.until((self.folder / f"killed-{kill}").exists)


class OnPurposeError(Exception):
    pass


class FailAt(tf.keras.callbacks.Callback):
    """Fails in the second epoch, after a checkpoint was written in it."""

    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint, self.epoch = checkpoint, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch >= ITEMS * PER_ITEM // 2:
            saving = self.checkpoint.saving
            saving.wait()
            # By then some worker has done an item of this epoch, and has another one.
            if saving.manifest.state["iterations"] > (ITEMS + 3) * PER_ITEM:
                raise OnPurposeError


class Restored(tf.keras.callbacks.Callback):
    """Notes how much of the queue was done where training continues, and trained."""

    def __init__(self, queue):
        super().__init__()
        self.queue, self.done, self.trained = queue, None, None

    def on_train_begin(self, logs=None):
        self.done = self.queue and self.queue.stats()["done"]
        self.trained = self.model.seen.numpy().tolist()
        self.model.seen.assign(tf.zeros_like(self.model.seen))


def in_part(strategy, folder, fails, has_queue=True, **more):
    """Goes on from a checkpoint, if there is one; may fail within an epoch."""
    folder = str(pathlib.Path(folder) / "-".join([f"checkpoints-{has_queue}", *more]))
    of_worker = ITEMS * PER_ITEM // WORKERS
    with strategy.scope():
        queue = has_queue and tfs.data.WorkQueue(ITEMS, num_epochs=2, shuffle=True)
    queues = {"items": queue} if has_queue else None
    checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=7, work_queues=queues)

    def data(context):
        if queue:
            return queue.dataset(of_item)
        return batches(context.input_pipeline_id * of_worker * BATCH, of_worker)

    restored = None if fails else Restored(queue)
    callbacks = [checkpoint, restored or FailAt(checkpoint)]
    options = {"num_examples": ITEMS * PER_ITEM * BATCH, "epochs": 2, **more}
    with mock.patch.object(logging, "warning") as warning:
        try:
            result = train(strategy, data, more=callbacks, **options)
        except OnPurposeError:
            return {}
    assert restored
    return {
        **result,
        "done": restored.done,
        "trained": restored.trained,
        "stats": queue and queue.stats(),
        "warnings": [call.args[0] for call in warning.call_args_list],
    }


def resumed(strategy, folder, **options):
    """Fails in the middle of an epoch, and continues from a checkpoint."""
    in_part(strategy, folder, True, **options)
    return in_part(strategy, folder, False, **options)


def in_another_cluster(folder, fails):
    return in_part(make_strategy(), folder, fails)


def refused(strategy):
    """The messages of `fit` for data without an end, and for data without content."""
    with strategy.scope():
        queue = tfs.data.WorkQueue(ITEMS, 1)
    model = make(strategy, ITEMS * PER_ITEM * BATCH)
    tfs.keras.fit(model, lambda _: queue.dataset(of_item), verbose=0)
    messages = {}
    for name, data in {
        "endless": lambda _: batches(0, 1).repeat(),
        "empty": lambda _: batches(0, 0),
        "read": lambda _: queue.dataset(of_item),
    }.items():
        try:
            tfs.keras.fit(model, data, verbose=0)
        except ValueError as error:
            messages[name] = str(error)
    return messages


def run(names, folder):
    """The results of scenarios."""
    strategy = make_strategy()
    executions, synchronous = {"per_execution": PER_EXECUTION}, {"quorum": 3}
    of_two, often = {"quorum": 2}, (EPOCHS_OF_KILLS, folder, KILLS_AT, 5)
    scenarios = {
        "uneven": (uneven, (), {}),
        "uneven executions": (uneven, (), executions),
        "uneven synchronous": (uneven, (), synchronous),
        "uneven synchronous executions": (uneven, (), {**synchronous, **executions}),
        "queue": (queued, (3, 3), {}),
        "queue executions": (queued, (3, 3), executions),
        "queue synchronous": (queued, (None, 2), of_two),
        "queue ends": (queued, (2, 5), {}),
        "served": (served, (30, 3, True), {}),
        "served executions": (served, (30, 3, True), executions),
        "served without a width": (served, (30, 3, False), {}),
        "served in steps": (served, (5, 2, True), {"steps": 10}),
        "slow": (slow, (folder,), {}),
        "killed": (killed, (2, folder, [ITEMS * PER_ITEM // 3], 0), {}),
        "killed executions": (killed, (2, folder, [5], 0), executions),
        "killed often": (killed, often, {}),
        "killed often synchronous": (killed, often, of_two),
        "resumed": (resumed, (folder,), {}),
        "resumed executions": (resumed, (folder,), executions),
        "resumed without a queue": (resumed, (folder,), {"has_queue": False}),
        "refused": (refused, (), {}),
    }
    results = {}
    for name in names:
        function, arguments, options = scenarios[name]
        results[name] = function(strategy, *arguments, **options)
    return results


@pytest.fixture(scope="module")
def undisturbed(request, tmp_path_factory):
    names = [*programs.wanted(request, "name"), "refused", "slow"]
    folder = str(tmp_path_factory.mktemp("passes"))
    return clusters.call(run, names, folder, num_workers=WORKERS)


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("uneven", marks=pytest.mark.slow),
        "uneven executions",
        "uneven synchronous",
        pytest.param("uneven synchronous executions", marks=pytest.mark.slow),
    ],
)
def test_each_worker_reads_to_its_end(undisturbed, name):
    """One of three workers has no batch, one has 7 and one has 14."""
    result = undisturbed[name]
    expected = np.zeros(400)
    expected[100:128] = expected[200:256] = 2
    np.testing.assert_array_equal(result["seen"], expected)
    assert result["epochs"] == [0, 1]
    assert result["steps"] == [21, 21]
    assert result["examples"] == [21 * BATCH] * 2
    if "synchronous" in name:
        # There are fewer if gradients of a slow worker came late.
        assert 2 * 21 // 6 < result["iterations"] <= 2 * 21 // 3
    else:
        assert result["iterations"] == 2 * 21


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "epochs"),
    [
        ("queue", 3),
        ("queue executions", 3),
        ("queue synchronous", 2),
        ("queue ends", 2),
    ],
)
def test_epoch_is_one_of_the_queue(undisturbed, name, epochs):
    result = undisturbed[name]
    assert set(result["seen"]) == {epochs}
    assert result["epochs"] == [*range(epochs)]
    assert result["steps"] == [ITEMS * PER_ITEM] * epochs
    stats = result["stats"]
    assert stats["handed_out"] == stats["done"] == ITEMS * epochs
    assert stats["limit"] == -1


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["served", "served executions", "served without a width"]
)
def test_each_batch_of_a_job_that_workers_share_is_trained_once_an_epoch(
    undisturbed, name
):
    """If batches have no width, the model is built by one that is read here."""
    result = undisturbed[name]
    assert set(result["seen"]) == {3}
    assert result["epochs"] == [0, 1, 2]
    assert result["steps"] == [30] * 3
    assert result["iterations"] == 90


@pytest.mark.ci
@pytest.mark.parametrize("name", ["served in steps"])
def test_worker_that_finds_nothing_left_of_a_shared_job_goes_on(undisturbed, name):
    """There are fewer batches than a worker reads ahead."""
    result = undisturbed[name]
    assert result["steps"] == [10] * 2
    assert result["iterations"] == 20
    assert sum(result["seen"]) == 20 * BATCH


def rest_read_once(result):
    """Checks that what a checkpoint left of a queue was read; returns its items."""
    assert ITEMS < result["done"] < 2 * ITEMS == result["stats"]["done"]
    left = 2 * ITEMS - result["done"]
    assert sum(result["seen"]) == left * PER_ITEM * BATCH
    assert max(result["seen"]) == 1
    return left


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["resumed", pytest.param("resumed executions", marks=pytest.mark.slow)]
)
def test_checkpoint_in_an_epoch_goes_on_with_what_is_left_of_it(undisturbed, name):
    result = undisturbed[name]
    assert result["epochs"] == [1]
    assert not any("the epoch goes on" in x for x in result["warnings"])
    left = rest_read_once(result)
    assert result["steps"][0] >= left * PER_ITEM
    # A worker may have read these, of items that were done by then, and not trained.
    may_lack = WORKERS * (PER_EXECUTION - 1) if "executions" in name else 0
    trained = np.array(result["trained"]) + result["seen"]
    assert batches_missing(trained, epochs=2) <= may_lack


@pytest.mark.ci
@pytest.mark.parametrize(
    ("before", "after"), [((1, 2), (4, 3)), ((4, 3), (1, 1))], ids=["more", "fewer"]
)
def test_queue_goes_on_exactly_with_another_number_of_tasks(tmp_path, before, after):
    """The numbers are of workers and of parameter servers."""
    results = [
        clusters.call(
            *(in_another_cluster, str(tmp_path), fails),
            num_workers=num_workers,
            num_ps=num_ps,
        )
        for fails, (num_workers, num_ps) in ((True, before), (False, after))
    ]
    (result,) = filter(None, results)
    rest_read_once(result)
    trained = np.array(result["trained"]) + result["seen"]
    assert batches_missing(trained, epochs=2) == 0


@pytest.mark.ci
@pytest.mark.parametrize("name", ["resumed without a queue"])
def test_epoch_of_which_nobody_knows_what_was_read_is_read_again(undisturbed, name):
    result = undisturbed[name]
    assert result["epochs"] == [1]
    assert 0 < sum(result["trained"]) < 2 * ITEMS * PER_ITEM * BATCH
    assert set(result["seen"]) == {1}
    (told,) = (x for x in result["warnings"] if "the epoch goes on" in x)
    assert "with all of its data again" in told


def batches_missing(seen, epochs):
    """How many batches were not trained in an epoch."""
    return np.sum(np.maximum(0, epochs - np.array(seen))) / BATCH


@pytest.mark.ci
def test_what_has_no_end_and_what_has_nothing_is_refused(undisturbed):
    assert undisturbed["refused"] == {
        "endless": "A function that makes datasets without end needs steps_per_epoch. "
        "Received: steps_per_epoch=None",
        "empty": "`x` must have a batch. Received: an empty dataset",
        "read": "`x` must have a batch. Received: an empty dataset: its work queue has "
        "no epoch left",
    }


@pytest.mark.ci
@pytest.mark.parametrize(
    ("scenario", "seed", "comes_back"),
    [
        ("killed", 0, False),
        pytest.param("killed", 0, True, marks=pytest.mark.slow),
        pytest.param("killed executions", 0, True, marks=pytest.mark.slow),
        pytest.param(
            "killed often", 0, True, marks=[pytest.mark.slow, pytest.mark.one_version]
        ),
        *(
            pytest.param(often, seed, True, marks=pytest.mark.soak)
            for often in ("killed often", "killed often synchronous")
            for seed in range(1, 6)
        ),
    ],
)
def test_what_lost_workers_had_begun_is_read_by_others(
    tmp_path, scenario, seed, comes_back
):
    draw, is_often = random.Random(seed), "often" in scenario
    kills = len(KILLS_AT) if is_often else 1
    with clusters.Cluster(num_workers=WORKERS, num_ps=2) as cluster:
        command = programs.call_command(run, [scenario], str(tmp_path))
        cluster.start("chief", command)
        for kill in range(kills):
            cluster.wait_for_output("chief", f"kill {kill}.")
            worker = f"worker-{draw.randrange(WORKERS)}"
            cluster.kill(worker)
            (tmp_path / f"killed-{kill}").touch()
            if comes_back:
                cluster.restart(worker)
        assert cluster.wait("chief") == 0, cluster.output("chief")
        result = programs.result_in(cluster.output("chief"))[scenario]
    assert result["stats"]["repeated"] >= is_often
    at_once = PER_EXECUTION if "executions" in scenario else 1
    assert_accounted_for(result, EPOCHS_OF_KILLS if is_often else 2, kills, at_once)


def assert_accounted_for(result, epochs, kills, per_execution):
    """Asserts that everything was read, and that repeated reads are counted.

    Of the batches that a killed worker had read for an execution, the last one alone is
    sure to be of an item that is read again.
    """
    missing = batches_missing(result["seen"], epochs)
    assert missing <= (per_execution - 1) * kills
    stats = result["stats"]
    assert stats["done"] == epochs * ITEMS
    assert stats["handed_out"] == stats["done"] + stats["repeated"]
    again = np.sum(np.array(result["seen"]) - epochs) / BATCH + missing
    assert again <= PER_ITEM * stats["repeated"] + kills


@pytest.mark.slow
def test_servers_of_one_thread_answer_while_workers_wait_for_gate_and_queue(tmp_path):
    name = "queue synchronous"
    env = {threads.INTER_OP_VARIABLE: "1", threads.INTRA_OP_VARIABLE: "1"}
    result = clusters.call(run, [name], str(tmp_path), num_workers=WORKERS, env=env)[
        name
    ]
    assert set(result["seen"]) == {2}
    assert result["stats"]["in_flight"] == 0


@pytest.mark.ci
def test_worker_that_takes_long_to_make_its_data_is_waited_for(undisturbed):
    """Longer than others that have nothing left to do are waited for."""
    result = undisturbed["slow"]
    # It is asked again while its data comes, which takes a while on a busy machine.
    assert result["silences"] >= PATIENCE + 20
    assert result["steps"] == [21, 21]
