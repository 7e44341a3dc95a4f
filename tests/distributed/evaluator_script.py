"""Trains as the chief of a cluster; as the evaluator, evaluates each checkpoint.

Arguments: a folder for checkpoints, and the number of updates. The evaluator writes
what it found to "evaluations.json" beside the folder.
"""

import json
import os
import pathlib
import sys

import checkpoint_models as models
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.keras import sidecar_evaluator

WORKERS = 2


def make_model():
    """The same for both."""
    return models.make(
        wrap=lambda x: tfs.keras.SyncReplicas(x, WORKERS, WORKERS, spares=False)
    )


def train(folder, updates):
    strategy = make_strategy()
    with strategy.scope():
        model = make_model()
    checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=5, full_every=4, keep=5)
    tfs.keras.fit(
        model,
        models.dataset,
        epochs=2,
        steps_per_epoch=updates * WORKERS // 2,
        verbose=0,
        callbacks=[checkpoint],
    )


def evaluate(folder):
    sidecar_evaluator._LINGER_SECS = 1.0
    model = make_model()
    data = tf.data.Dataset.from_tensors(models.batch())
    evaluator = tfs.keras.SidecarEvaluator(model, data, folder)
    found = [[x.path, x.iterations, x.metrics["loss"]] for x in evaluator.start()]
    path = pathlib.Path(folder).parent / "evaluations.json"
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    if tfs.distribute.read_tf_config().task_type == "evaluator":
        evaluate(sys.argv[1])
    else:
        train(sys.argv[1], int(sys.argv[2]))
    os._exit(0)
