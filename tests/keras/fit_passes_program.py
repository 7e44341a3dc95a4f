"""Trains by `tfs.keras.fit` on workers whose data ends without warning.

Argument, JSON: the names of the scenarios to run, and a folder.
"""

import contextlib
import itertools
import json
import os
import pathlib
import sys
import time
from typing import Any
from unittest import mock

import clusters
import keras_variants
import numpy as np
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.keras.fit import ends
from tf_syncrep.python.keras.fit.passes import WorkersPasses

BATCH = 4
ITEMS, PER_ITEM = 20, 3  # items of a work queue, and batches of an item
# Checkpoints also come at the ends of epochs, and soon after one another.
EPOCHS_OF_KILLS, KILLS_AT = 4, [8, 40, 58, 66, 110, 118, 160, 190]


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


def train(strategy, data, num_examples, epochs, more=(), **options):
    """Trains; returns the counts."""
    model = make(strategy, num_examples, **options)
    steps = Steps()
    history = tfs.keras.fit(
        model, data, epochs=epochs, verbose=0, callbacks=[steps, *more]
    )
    for epoch in steps.epochs:
        assert all(b[0] == a[1] + 1 for a, b in itertools.pairwise(epoch))
    return {
        "seen": model.seen.numpy().tolist(),
        "epochs": history.epoch,
        "examples": history.history["examples"],
        "steps": [1 + epoch[-1][-1] for epoch in steps.epochs],
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
        if silences == 2 * ends._PATIENCE and not made:
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

    with mock.patch.object(WorkersPasses, "is_made", is_made):
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
                deadline = time.monotonic() + clusters.DEADLINE_SECS
                while not (self.folder / f"killed-{kill}").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.02)


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
        self.done = self.queue.stats()["done"]
        self.trained = self.model.seen.numpy().tolist()
        self.model.seen.assign(tf.zeros_like(self.model.seen))


def resumed(strategy, folder, **more):
    """Fails in the middle of an epoch, and continues from a checkpoint."""
    folder = str(pathlib.Path(folder) / "-".join(["checkpoints", *more]))

    def begin():
        with strategy.scope():
            queue = tfs.data.WorkQueue(ITEMS, num_epochs=2, shuffle=True)
        checkpoint = tfs.keras.Checkpoint(
            folder, every_n_steps=7, work_queues={"items": queue}
        )
        return queue, checkpoint

    queue, checkpoint = begin()
    options = {"num_examples": ITEMS * PER_ITEM * BATCH, "epochs": 2, **more}
    with contextlib.suppress(OnPurposeError):
        train(
            strategy,
            lambda _: queue.dataset(of_item),
            more=[checkpoint, FailAt(checkpoint)],
            **options,
        )
    queue, checkpoint = begin()
    restored = Restored(queue)
    result = train(
        strategy,
        lambda _: queue.dataset(of_item),
        more=[checkpoint, restored],
        **options,
    )
    told = {"done": restored.done, "trained": restored.trained}
    return {**result, **told, "stats": queue.stats()}


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


def main(names, folder):
    strategy = make_strategy()
    scenarios = {
        "uneven": lambda: uneven(strategy),
        "uneven executions": lambda: uneven(strategy, per_execution=4),
        "uneven synchronous": lambda: uneven(strategy, quorum=3),
        "uneven synchronous executions": lambda: uneven(
            strategy, quorum=3, per_execution=4
        ),
        "queue": lambda: queued(strategy, 3, 3),
        "queue executions": lambda: queued(strategy, 3, 3, per_execution=4),
        "queue synchronous": lambda: queued(strategy, None, 2, quorum=2),
        "queue ends": lambda: queued(strategy, 2, 5),
        "slow": lambda: slow(strategy, folder),
        "killed": lambda: killed(strategy, 2, folder, [ITEMS * PER_ITEM // 3], 0),
        "killed executions": lambda: killed(
            strategy, 2, folder, [5], 0, per_execution=4
        ),
        "killed often": lambda: killed(strategy, EPOCHS_OF_KILLS, folder, KILLS_AT, 5),
        "killed often synchronous": lambda: killed(
            strategy, EPOCHS_OF_KILLS, folder, KILLS_AT, 5, quorum=2
        ),
        "resumed": lambda: resumed(strategy, folder),
        "resumed executions": lambda: resumed(strategy, folder, per_execution=4),
        "refused": lambda: refused(strategy),
    }
    programs.report({name: scenarios[name]() for name in names})


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
