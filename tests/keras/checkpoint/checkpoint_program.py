"""Trains as the coordinator of a cluster, writes checkpoints, and continues from them.

Argument, JSON: "folder", "quorum" (None without SyncReplicas), "epochs", "steps" of
each epoch, and "options" of the callback. FOLDER.npz has the model's state at the end.
"""

import json
import sys

import checkpoint_models as models
import numpy as np
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

# So many batches overwrite rows while a checkpoint is being written. Then training
# waits, so that on a slow machine there are as many checkpoints as on a fast one.
BATCHES_MEANWHILE = 8


class Savings(tf.keras.callbacks.Callback):
    """Collects facts about the checkpoints."""

    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint = checkpoint
        self.savings = []
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        saving = self.checkpoint.saving
        if saving is None:
            return
        if saving not in self.savings:
            self.savings.append(saving)
            self.batches = 0
        self.batches += 1
        if self.batches == BATCHES_MEANWHILE:
            saving.wait_until_over()


def main(folder, quorum, epochs, steps, options):
    strategy = make_strategy()
    with strategy.scope():
        model = models.make(
            wrap=quorum
            and (lambda x: tfs.keras.SyncReplicas(x, quorum, quorum, spares=False))
        )
    checkpoint = tfs.keras.Checkpoint(folder, **options)
    savings = Savings(checkpoint)
    history = tfs.keras.fit(
        model,
        models.dataset,
        epochs=epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[checkpoint, savings],
    )
    np.savez(f"{folder}.npz", **models.state_of(model))
    restored = checkpoint.restored
    return {
        "epochs": history.epoch,
        "restored": restored and [restored.path, restored.iterations],
        "iterations": int(np.asarray(model.optimizer.iterations)),
        "kept_bytes": [x.kept_bytes for x in savings.savings],
        "errors": [str(x.error) for x in savings.savings if x.error],
    }


if __name__ == "__main__":
    programs.report(main(**json.loads(sys.argv[1])))
