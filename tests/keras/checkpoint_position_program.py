"""Trains on a cluster, is interrupted twice, continues twice, then begins anew.

Argument, JSON: a folder.
"""

import contextlib
import json
import pathlib
import sys
import unittest

import numpy as np
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy
from test_checkpoint_position import OnPurposeError, TwoUpdates, Watch

import tf_syncrep as tfs

STEPS = 6


class Await(tf.keras.callbacks.Callback):
    """Waits for each checkpoint, so that none is skipped while another is written."""

    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint = checkpoint

    def on_train_batch_end(self, batch, logs=None):
        if self.checkpoint.saving is not None:
            self.checkpoint.saving.wait()


def make(strategy, kind):
    with strategy.scope():
        inputs = tf.keras.Input([2])
        of = TwoUpdates if kind == "two updates" else tf.keras.Model
        model = of(inputs, tf.keras.layers.Dense(1)(inputs))
        optimizer = tf.keras.optimizers.SGD(0.01)
        if kind == "synchronous":
            optimizer = tfs.keras.SyncReplicas(optimizer, 2, 2, spares=False)
        model.compile(optimizer, loss="mse")
    return model


def fit(model, *callbacks, epochs):
    ones = np.ones([2, 2], np.float32)
    data = tf.data.Dataset.from_tensors((ones, ones[:, :1])).repeat()
    history = tfs.keras.fit(
        model,
        data,
        epochs=epochs,
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[*callbacks],
    )
    return history.epoch


def scenario(strategy, folder, kind):
    checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=4)
    with contextlib.suppress(OnPurposeError):
        callbacks = checkpoint, Await(checkpoint), Watch(fail_at=(1, 4))
        fit(make(strategy, kind), *callbacks, epochs=3)
    state = checkpoint.saving.wait().state
    model = make(strategy, kind)
    with contextlib.suppress(OnPurposeError):
        fit(model, tfs.keras.Checkpoint(folder), Watch(fail_at="begin"), epochs=3)
    after_failure = fit(model, epochs=3)
    model, watch = make(strategy, kind), Watch()
    with unittest.TestCase().assertLogs("absl", "WARNING") as logs:
        epochs = fit(model, tfs.keras.Checkpoint(folder), watch, epochs=3)
    return {
        "saved": [state["epoch"], state["step"]],
        "after failure": after_failure,
        "first": watch.first,
        "epochs": epochs,
        "log": "\n".join(logs.output),
        "iterations": int(np.asarray(model.optimizer.iterations)),
    }


def main(folder):
    strategy = make_strategy()
    programs.report(
        {
            kind: scenario(strategy, str(pathlib.Path(folder) / kind), kind)
            for kind in ("two updates", "synchronous")
        }
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
