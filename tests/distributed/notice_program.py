"""Counts how often each item of a work queue is trained, in a table, with checkpoints.

Arguments: a folder, for checkpoints and the result; and what else is to be so, by name.
"""

import json
import os
import pathlib
import sys
import threading

import numpy as np
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

ITEMS, BATCHES_OF_ITEM, EPOCHS = 300, 2, 2
HANGS_AT = 50


class Told(tf.keras.callbacks.Callback):
    def __init__(self, hangs):
        super().__init__()
        self._hangs = hangs

    def on_train_batch_end(self, batch, logs=None):
        print(f"step {batch}", flush=True)
        if self._hangs and batch == HANGS_AT:
            threading.Event().wait()


def make_model():
    # The gradient of each batch of an item is -1 in the item's row.
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((1,), dtype="int64"),
            tfs.keras.Embedding(ITEMS, 1, embeddings_initializer="zeros"),
            tf.keras.layers.Flatten(),
        ]
    )
    model.compile(tfs.keras.SGD(1.0), loss=lambda _, outputs: -outputs)
    return model


def train(folder, options):
    strategy = make_strategy()
    with strategy.scope():
        queue = tfs.data.WorkQueue(ITEMS, num_epochs=None, shuffle=True)
        model = make_model()

    def batches(item):
        example = ([item], [0.0])
        return tf.data.Dataset.from_tensors(example).repeat(BATCHES_OF_ITEM)

    def dataset(context):
        return queue.dataset(batches).batch(1)

    checkpoint = tfs.keras.Checkpoint(folder, work_queues={"items": queue})
    callbacks = [Told("hangs" in options)]
    if "no checkpoint" not in options:
        callbacks.insert(0, checkpoint)
    tfs.keras.fit(model, dataset, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    counts = np.round(np.concatenate([x.ravel() for x in model.get_weights()]))
    pathlib.Path(folder, "counts.json").write_text(json.dumps(sorted(counts.tolist())))


if __name__ == "__main__":
    folder, *options = sys.argv[1:]
    if "in a thread" in options:
        thread = threading.Thread(target=train, args=(folder, options))
        thread.start()
        thread.join()
    else:
        train(folder, options)
    os._exit(0)
