"""Trains under `tf-syncrep launch`, with checkpoints, until all updates are made.

Arguments: a folder for checkpoints, one for the result, the number of updates, and how
many bytes a second servers may write, if there is a limit. As the evaluator, it writes
what it found in each checkpoint to "evaluations.json".
"""

import json
import os
import pathlib
import sys

import checkpoint_models as models
import numpy as np
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.keras import sidecar_evaluator

WORKERS = 2


def make_model():
    return models.make(
        wrap=lambda x: tfs.keras.SyncReplicas(x, WORKERS, WORKERS, spares=False)
    )


class Progress(tf.keras.callbacks.Callback):
    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint, self.is_there = checkpoint, False

    def on_train_batch_end(self, batch, logs=None):
        if not self.is_there and self.checkpoint.saving is not None:
            # This comes before the training is over, however fast that is.
            self.checkpoint.saving.wait()
            self.is_there = True
            print("a checkpoint is there", flush=True)
        print(f"step {batch}", flush=True)


def train(folder, result, updates, max_bytes_per_sec=None):
    strategy = make_strategy()
    with strategy.scope():
        model = make_model()
    checkpoint = tfs.keras.Checkpoint(
        folder,
        every_n_steps=7,
        full_every=4,
        keep=5,
        max_bytes_per_sec=max_bytes_per_sec and float(max_bytes_per_sec),
    )
    tfs.keras.fit(
        model,
        models.dataset,
        epochs=4,
        steps_per_epoch=int(updates) * WORKERS // 4,
        verbose=0,
        callbacks=[checkpoint, Progress(checkpoint)],
    )
    np.savez(
        pathlib.Path(result) / "result.npz",
        iterations=int(np.asarray(model.optimizer.iterations)),
        **models.state_of(model),
    )


def evaluate(folder, result, *_):
    sidecar_evaluator._LINGER_SECS = 1.0
    data = tf.data.Dataset.from_tensors(models.batch())
    evaluator = tfs.keras.SidecarEvaluator(make_model(), data, folder)
    found = [[x.path, x.iterations, x.metrics["loss"]] for x in evaluator.start()]
    pathlib.Path(result, "evaluations.json").write_text(json.dumps(found))


if __name__ == "__main__":
    is_evaluator = tfs.distribute.read_tf_config().task_type == "evaluator"
    (evaluate if is_evaluator else train)(*sys.argv[1:])
    os._exit(0)
