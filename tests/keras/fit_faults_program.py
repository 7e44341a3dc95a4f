"""Trains twice by `tfs.keras.fit`, slowly enough for a test to kill tasks meanwhile.

Argument: steps of an epoch. Prints a line when a tenth of the steps of one are done.
"""

import json
import sys

import keras_sync_replicas
import keras_variants
import programs
import tensorflow as tf

import tf_syncrep as tfs


def train(model, num_steps):
    num_batches = 0

    def count(batch, logs):
        del logs
        nonlocal num_batches
        num_batches += 1
        if batch == num_steps // 10:
            print("UNDER WAY", flush=True)

    data = tf.data.Dataset.from_tensors(keras_variants.small_data())
    try:
        history = tfs.keras.fit(
            model,
            data,
            steps_per_epoch=num_steps,
            epochs=2,
            verbose=0,
            callbacks=[tf.keras.callbacks.LambdaCallback(on_train_batch_end=count)],
            validation_data=data,
        )
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    return {
        "raised": None,
        "loss": history.history["val_loss"],
        "batches": num_batches,
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def main():
    num_steps = json.loads(sys.argv[1])
    with keras_sync_replicas.make_strategy().scope():
        model = keras_variants.small_model()
        model.compile(tfs.keras.AdamAsync(0.01), loss="mse", metrics=["mae"])
    programs.report([train(model, num_steps) for _ in range(2)])


if __name__ == "__main__":
    main()
