"""Counts how often each item of a work queue is trained, in a table, with checkpoints.

Arguments: a folder, for checkpoints and the result; what else is to be so, by name; the
numbers of items, of batches of each, and of epochs; and the batch at which it hangs, if
it is to.
"""

import json
import os
import pathlib
import sys
import threading
import time

import numpy as np
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.notice import Notice

SLOW_SECS = 4


class Told(tf.keras.callbacks.Callback):
    def __init__(self, hangs_at):
        super().__init__()
        self._hangs_at = hangs_at

    def on_train_batch_end(self, batch, logs=None):
        print(f"step {batch}", flush=True)
        if batch == self._hangs_at:
            threading.Event().wait()


def make_model(items):
    # The gradient of each batch of an item is -1 in the item's row.
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((1,), dtype="int64"),
            tfs.keras.Embedding(items, 1, embeddings_initializer="zeros"),
            tf.keras.layers.Flatten(),
        ]
    )
    model.compile(tfs.keras.SGD(1.0), loss=lambda _, outputs: -outputs)
    return model


def train(folder, option, items, batches_of_item, epochs, hangs_at):
    strategy = make_strategy()
    with strategy.scope():
        queue = tfs.data.WorkQueue(items, num_epochs=None, shuffle=True)
        model = make_model(items)

    def batches(item):
        example = ([item], [0.0])
        return tf.data.Dataset.from_tensors(example).repeat(batches_of_item)

    def dataset(context):
        return queue.dataset(batches).batch(1)

    checkpoint = tfs.keras.Checkpoint(folder, work_queues={"items": queue})
    callbacks = [Told(hangs_at if option == "hangs" else None)]
    if option != "no checkpoint":
        callbacks.insert(0, checkpoint)
    tfs.keras.fit(model, dataset, epochs=epochs, verbose=0, callbacks=callbacks)
    counts = np.round(np.concatenate([x.ravel() for x in model.get_weights()]))
    pathlib.Path(folder, "counts.json").write_text(json.dumps(sorted(counts.tolist())))


if __name__ == "__main__":
    folder, option, *numbers = sys.argv[1:]
    arguments = (folder, option, *map(int, numbers))
    if option == "slow":
        give = Notice.give

        def give_late(self, whose):
            time.sleep(SLOW_SECS)
            give(self, whose)

        Notice.give = give_late
    if option == "in a thread":
        thread = threading.Thread(target=train, args=arguments)
        thread.start()
        thread.join()
    else:
        train(*arguments)
    os._exit(0)
