"""Trains synchronously as the coordinator, again and again, by models of its own.

With `then_wait` it waits to be killed, in the midst of a last training.
"""

import gc
import json
import os
import sys
import time
import weakref

import keras_sync_replicas as helpers
import programs
import tensorflow as tf
from tensorflow.python.eager import context

import tf_syncrep as tfs

TABLES = 3
# Of a dense gradient, which its accumulator keeps memory for: 2 MB.
FEATURES = 4096
UNITS = 128
BATCH = 4


def set_keep_alive(secs):
    """Has servers drop what they hold for this process so long after they heard of it.

    TensorFlow has no public argument for it; 600 s are its default.
    """
    context._KEEP_ALIVE_SECS = secs


def make_model():
    layers = tf.keras.layers
    rows = layers.Input((TABLES,), dtype="int32")
    features = layers.Input((FEATURES,))
    looked_up = [
        tfs.keras.Embedding(1000, 8, shards=1)(rows[:, i]) for i in range(TABLES)
    ]
    hidden = layers.Dense(UNITS)(features)
    return tf.keras.Model(
        [rows, features], layers.Dense(1)(layers.Concatenate()([*looked_up, hidden]))
    )


def dataset(context=None):
    del context
    rows = tf.ones([BATCH, TABLES], tf.int32)
    features = tf.ones([BATCH, FEATURES])
    return tf.data.Dataset.from_tensors(((rows, features), tf.ones([BATCH, 1]))).repeat()


def train(strategy, steps=4, on_update=None):
    """One training; a weak reference to its optimizer, which nothing else is left of."""
    with strategy.scope():
        model = make_model()
        optimizer = tfs.keras.SyncReplicas(helpers.OPTIMIZERS["sgd"](), 2)
        model.compile(optimizer, loss="mse")
    if on_update is not None:
        optimizer.add_observer(on_update)
    for _ in range(1):  # The second one by the same gate and accumulators.
        tfs.keras.fit(model, dataset, steps_per_epoch=steps, verbose=0)
    assert helpers.iterations_of(optimizer) == steps // 2
    return weakref.ref(optimizer)


def main(trainings, keep_alive_secs, then_wait):
    set_keep_alive(keep_alive_secs)
    strategy = helpers.make_strategy()
    left = []
    for number in range(trainings):
        begin=time.time()
        left.append(train(strategy))
        gc.collect()
        print(f"training {number} {time.time()-begin}", flush=True)
    if then_wait:
        train(strategy, 1_000_000, lambda step: step > 2 and print("trains", flush=True))
    programs.report([x() is None for x in left])


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
