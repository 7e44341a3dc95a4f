"""Trains synchronously as the coordinator, again and again, with a new model each time.

The arguments say how often, how soon servers give up a coordinator of which they hear
nothing, and whether it then goes on training until it is killed.
"""

import gc
import json
import sys

import compat
import keras_sync_replicas as helpers
import tensorflow as tf

import tf_syncrep as tfs

TABLES = 3
# A dense gradient of 8 MB.
FEATURES, UNITS = 2048, 1024
BATCH = 4
STEPS = 4


def make_model():
    layers = tf.keras.layers
    rows = layers.Input((TABLES,), dtype="int32")
    features = layers.Input((FEATURES,))
    looked_up = [tfs.keras.Embedding(1000, 8)(rows[:, i]) for i in range(TABLES)]
    hidden = layers.Dense(UNITS)(features)
    outputs = layers.Dense(1)(layers.Concatenate()([*looked_up, hidden]))
    return tf.keras.Model([rows, features], outputs)


def batches(item):
    rows = tf.fill([BATCH, TABLES], tf.cast(item, tf.int32))
    inputs = (rows, tf.ones([BATCH, FEATURES]))
    return tf.data.Dataset.from_tensors((inputs, tf.ones([BATCH, 1])))


class Tell(tf.keras.callbacks.Callback):
    """Says that an epoch has ended."""

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", flush=True)


def train(strategy, epochs):
    """Two trainings, the second of which uses the same gate and accumulators."""
    with strategy.scope():
        queue = tfs.data.WorkQueue(100, num_epochs=None)
        model = make_model()
        optimizer = tfs.keras.SyncReplicas(helpers.OPTIMIZERS["sgd"](), 2)
        model.compile(optimizer, loss="mse")
    options = {"steps_per_epoch": STEPS, "verbose": 0}
    for _ in range(2):
        tfs.keras.fit(
            model,
            lambda _: queue.dataset(batches),
            epochs=epochs,
            callbacks=[Tell()],
            **options,
        )
    assert helpers.iterations_of(optimizer) == 2 * epochs * STEPS // 2


def main(trainings, keep_alive_secs, is_killed):
    compat.set_keep_alive(keep_alive_secs)
    strategy = helpers.make_strategy()
    for _ in range(trainings):
        train(strategy, epochs=1)
        # A model and the functions traced from it refer to each other.
        gc.collect()
        print("trained", flush=True)
    if is_killed:
        train(strategy, epochs=1_000_000)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
