"""Trains twice by `tfs.keras.fit`, slowly enough for a test to kill tasks meanwhile.

Arguments, JSON: steps of an epoch, and steps of an execution. Prints a line whenever
another tenth of an epoch's steps is done.
"""

import json
import sys

import keras_sync_replicas
import keras_variants
import programs
import tensorflow as tf

import tf_syncrep as tfs


class Watch(tf.keras.callbacks.Callback):
    """Counts steps, as `fit` reports them, and the examples that a metric counts."""

    def __init__(self, num_steps, metric):
        super().__init__()
        self.num_steps, self.metric = num_steps, metric
        self.steps, self.examples = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append(0)
        self.examples.append(0)

    def on_train_batch_end(self, batch, logs=None):
        before, self.steps[-1] = self.steps[-1], batch + 1
        self.examples[-1] = int(self.metric.count)
        if before <= self.num_steps // 10 <= batch:
            print("UNDER WAY", flush=True)


def train(model, metric, num_steps):
    watch = Watch(num_steps, metric)
    data = tf.data.Dataset.from_tensors(keras_variants.small_data())
    try:
        history = tfs.keras.fit(
            model,
            data,
            steps_per_epoch=num_steps,
            epochs=2,
            verbose=0,
            callbacks=[watch],
            validation_data=data,
        )
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    return {
        "raised": None,
        "loss": history.history["val_loss"],
        "steps": watch.steps,
        "examples": watch.examples,
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def main():
    num_steps, per_execution = json.loads(sys.argv[1])
    with keras_sync_replicas.make_strategy().scope():
        model = keras_variants.small_model()
        metric = tf.keras.metrics.MeanAbsoluteError(name="mae")
        model.compile(
            tfs.keras.AdamAsync(0.01),
            loss="mse",
            metrics=[metric],
            steps_per_execution=per_execution,
        )
    programs.report([train(model, metric, num_steps) for _ in range(2)])


if __name__ == "__main__":
    main()
