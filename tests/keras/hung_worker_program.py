"""Trains by `tfs.keras.fit`, in one epoch that outlasts every test.

Argument: whether synchronously, by two gradients of three. Prints a line for
each step that is over.
"""

import json
import sys

import keras_sync_replicas as helpers
import tensorflow as tf

import tf_syncrep as tfs


def main(is_synchronous):
    with helpers.make_strategy().scope():
        model = helpers.make_model()
        optimizer = tfs.keras.AdamAsync(1e-3)
        if is_synchronous:
            optimizer = tfs.keras.SyncReplicas(optimizer, 2, 3)
        model.compile(optimizer, loss=helpers.loss)
    tell = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: print("step is over", flush=True)
    )
    tfs.keras.fit(
        model, helpers.dataset(), steps_per_epoch=10**6, verbose=0, callbacks=[tell]
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
