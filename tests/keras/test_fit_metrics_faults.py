"""Metrics of tfs.keras.fit and evaluate while workers of the cluster are killed."""

import time
from typing import Any

import clusters
import keras_sync_replicas
import numpy as np
import programs
import pytest
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

    def look(self, batch, logs=None):
        if batch >= BATCHES // 10 and not self.has_said:
            print("UNDER WAY", flush=True)
            self.has_said = True

    def keep(self, *_, **__):
        self.epochs.append([x.numpy().tolist() for x in self.counted])
        self.has_said = False

    on_train_batch_end = on_test_batch_end = look
    on_epoch_end = on_test_end = keep


def batches():
    """It is slow, so that a test can kill a worker while it has some of them."""
    for number in range(BATCHES):
        time.sleep(0.01)
        yield np.ones([EXAMPLES, 2]), np.full([EXAMPLES, 1], float(number))


def train_and_evaluate(per_execution):
    """Says whenever another tenth of the batches is done."""
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
    return {
        "trained": trained,
        "evaluated": watch.epochs,
        "results": [*history["seen"], evaluated["seen"]],
    }


@pytest.mark.slow
@pytest.mark.parametrize("per_execution", [1, 4])
def test_each_batch_counts_once_whoever_is_killed(per_execution):
    with clusters.Cluster(num_workers=2, num_ps=1) as cluster:
        command = programs.call_command(train_and_evaluate, per_execution)
        cluster.start("chief", command)
        # They are killed in both epochs, and in the evaluation.
        for number in range(1, 4):
            cluster.wait_for_output("chief", "UNDER WAY", occurrence=number)
            worker = f"worker-{number % 2}"
            cluster.kill(worker)
            cluster.restart(worker)
        assert cluster.wait("chief") == 0, cluster.output("chief")
        result = programs.result_in(cluster.output("chief"))
    counted = [*result["trained"], *result["evaluated"]]
    for (seen, examples), shown in zip(counted, result["results"], strict=True):
        assert max(seen) == 1
        # All metrics count the same steps.
        assert examples == EXAMPLES * sum(seen)
        assert shown == sum(seen)
    # A training step is not repeated only for its metrics: if the worker was lost after
    # the step, and before its result was fetched, its metrics are lost.
    for seen, _ in result["trained"]:
        assert np.count_nonzero(np.equal(seen, 0)) in (0, per_execution)
    for seen, _ in result["evaluated"]:
        assert min(seen) == 1
