"""Trains a table of more bytes than a parameter server may hold.

Argument: how many rows the table has; each has 64 floats.
"""

import json
import sys

import keras_variants
import numpy as np
import programs
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

WIDTH, STEPS = 64, 20


def train(strategy, rows):
    """The loss before and after some steps, and the parts' devices."""
    table = tfs.keras.TableConfig("table", rows, WIDTH, "zeros")
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("ids", table)),
                tf.keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="ones", trainable=False
                ),
            ]
        )
        # That of Keras 2 makes slots, and on the coordinator.
        model.compile(tfs.keras.SGD(1.0), loss="mse")
    # The rows are spread from the first to the last. Each step halves an example's
    # error.
    ids = np.linspace(0, rows - 1, 256).astype(np.int64).reshape([64, 4])
    targets = np.sin(np.arange(64.0)).reshape([64, 1])

    def dataset(context):
        del context
        return tf.data.Dataset.from_tensors((ids, targets)).repeat()

    history = tfs.keras.fit(
        model, dataset, epochs=2, steps_per_epoch=STEPS, verbose=0
    ).history
    parts = model.layers[0].trainable_variables
    return history["loss"], [keras_variants.native(x).device for x in parts]


def main():
    rows = json.loads(sys.argv[1])
    strategy = make_strategy()
    programs.report(train(strategy, rows))


if __name__ == "__main__":
    main()
