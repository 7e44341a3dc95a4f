"""Trains and evaluates with a metric that tells how often it has counted each batch.

Argument, JSON: steps of an execution. Prints a line whenever another tenth of the
batches is done, in training and evaluation, so that a test can kill workers meanwhile.
"""

import json
import sys
import time
from typing import Any

import keras_sync_replicas
import numpy as np
import programs
import tensorflow as tf

import tf_syncrep as tfs

BATCHES, EXAMPLES = 200, 4


class Seen(tf.keras.metrics.Metric):
    """How often it was updated with each batch, whose number is its target."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = self.add_weight(name="seen", shape=(BATCHES,), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None):
        del y_pred, sample_weight
        number = tf.cast(y_true[0, 0], tf.int32)
        self.seen.assign_add(tf.one_hot(number, BATCHES))

    def reset_state(self):
        # Keras 2 by itself would assign a scalar.
        self.seen.assign(tf.zeros([BATCHES]))

    def result(self):
        return tf.reduce_sum(tf.convert_to_tensor(self.seen))


class Watch(tf.keras.callbacks.Callback):
    """Reports each tenth, and keeps the counts of the end."""

    def __init__(self, *counted):
        super().__init__()
        self.counted = counted
        self.epochs = []
        self.has_said = False

    def look(self, batch):
        if batch >= BATCHES // 10 and not self.has_said:
            print("UNDER WAY", flush=True)
            self.has_said = True

    def keep(self):
        self.epochs.append([x.numpy().tolist() for x in self.counted])
        self.has_said = False

    def on_train_batch_end(self, batch, logs=None):
        self.look(batch)

    def on_test_batch_end(self, batch, logs=None):
        self.look(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.keep()

    def on_test_end(self, logs=None):
        self.keep()


def batches():
    """It is slow, so that a test can kill a worker while it has some of them."""
    for number in range(BATCHES):
        time.sleep(0.01)
        yield np.ones([EXAMPLES, 2]), np.full([EXAMPLES, 1], float(number))


def main():
    (per_execution,) = json.loads(sys.argv[1])
    with keras_sync_replicas.make_strategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        metric, mean = Seen(name="seen"), tf.keras.metrics.MeanSquaredError(name="mse")
        model.compile(
            tf.keras.optimizers.SGD(0.0),
            loss="mse",
            metrics=[metric, mean],
            steps_per_execution=per_execution,
        )
    spec = tf.TensorSpec([EXAMPLES, 2]), tf.TensorSpec([EXAMPLES, 1])
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    data = data.apply(tf.data.experimental.assert_cardinality(BATCHES))
    watch = Watch(metric.seen, mean.count)
    history = tfs.keras.fit(model, data, epochs=2, verbose=0, callbacks=[watch]).history
    trained, watch.epochs = watch.epochs, []
    evaluated = tfs.keras.evaluate(
        model, data, verbose=0, callbacks=[watch], return_dict=True
    )
    programs.report(
        {
            "trained": trained,
            "evaluated": watch.epochs,
            "results": [*history["seen"], evaluated["seen"]],
        }
    )


if __name__ == "__main__":
    main()
