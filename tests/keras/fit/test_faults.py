"""tfs.keras.fit and evaluate while tasks of their cluster are stopped and killed."""

import signal
import time
from typing import Any

import clusters
import keras_sync_replicas
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

# Of what is killed here Keras 2 knows little: by night.
pytestmark = pytest.mark.ci if keras_variants.IS_KERAS_3 else pytest.mark.slow

BATCHES, EXAMPLES, EPOCHS = 208, 4, 3


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
    """Reports each tenth, and keeps the steps and the counts of the end."""

    def __init__(self, *counted):
        super().__init__()
        self.counted = counted
        self.epochs, self.steps = [], 0
        self.has_said = False

    def look(self, batch, logs=None):
        self.steps = batch + 1
        if batch >= BATCHES // 10 and not self.has_said:
            print("UNDER WAY", flush=True)
            self.has_said = True

    def keep(self, *_, **__):
        counts = [x.numpy().tolist() for x in self.counted]
        self.epochs.append([self.steps, *counts])
        self.has_said = False

    on_train_batch_end = on_test_batch_end = look
    on_epoch_end = on_test_end = keep


def batches():
    """It is slow, so that a test can kill a worker while it has some of them."""
    for number in range(BATCHES):
        time.sleep(0.01)
        yield np.ones([EXAMPLES, 2]), np.full([EXAMPLES, 1], float(number))


def train_and_evaluate(per_execution):
    """Three epochs, an evaluation, and a training that loses its server."""
    with keras_sync_replicas.make_strategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        metric, mean = Seen(name="seen"), tf.keras.metrics.MeanSquaredError(name="mse")
        model.compile(
            tfs.keras.AdamAsync(0.001),
            loss="mse",
            metrics=[metric, mean],
            steps_per_execution=per_execution,
        )
    spec = tf.TensorSpec([EXAMPLES, 2]), tf.TensorSpec([EXAMPLES, 1])
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    data = data.apply(tf.data.experimental.assert_cardinality(BATCHES))
    watch = Watch(metric.seen, mean.count)
    options = {"verbose": 0, "callbacks": [watch]}
    history = tfs.keras.fit(model, data, epochs=EPOCHS, **options).history
    iterations = int(model.optimizer.iterations.numpy())
    evaluated = tfs.keras.evaluate(model, data, return_dict=True, **options)
    return {
        "epochs": watch.epochs,
        "iterations": iterations,
        "results": [*history["seen"], evaluated["seen"]],
        "raised": programs.error_of(tfs.keras.fit, model, data, **options),
    }


@pytest.fixture(scope="module", params=[1, pytest.param(16, marks=pytest.mark.slow)])
def training(request):
    """The steps of an execution, and what came of trainings that lost tasks."""
    with clusters.Cluster(num_workers=2, num_ps=1) as cluster:
        command = programs.call_command(train_and_evaluate, request.param)
        # The servers have lost another coordinator before.
        for number in (1, 2):
            cluster.start("chief", command)
            cluster.wait_for_output("chief", "UNDER WAY", occurrence=number)
            if number == 1:
                cluster.kill("chief")
        for name in ("worker-0", "ps-0", "chief"):
            cluster.stop_for_a_while(name)
        # They are killed in later epochs, and in the evaluation. TensorFlow itself
        # waits for a lost worker to come back before it accepts another one that has
        # come back.
        for number in range(2, EPOCHS + 2):
            cluster.wait_for_output("chief", "UNDER WAY", occurrence=number + 1)
            worker = f"worker-{number % 2}"
            cluster.kill(worker, signal.SIGKILL if number % 2 else signal.SIGTERM)
            cluster.restart(worker)
        cluster.wait_for_output("chief", "UNDER WAY", occurrence=EPOCHS + 3)
        cluster.kill("ps-0")
        assert cluster.wait("chief") == 0, cluster.output("chief")
        return request.param, programs.result_in(cluster.output("chief"))


def test_fit_goes_on_over_workers_that_are_killed_and_restarted(training):
    per_execution, result = training
    assert [steps for steps, *_ in result["epochs"]] == [BATCHES] * (EPOCHS + 1)
    # If a worker is lost during an execution, the execution is made again, so its steps
    # may count twice on servers, but not in metrics.
    steps = EPOCHS * BATCHES
    assert steps <= result["iterations"] <= steps + (EPOCHS - 1) * per_execution


def test_each_batch_counts_once_whoever_is_killed(training):
    per_execution, result = training
    for (_, seen, examples), shown in zip(
        result["epochs"], result["results"], strict=True
    ):
        assert max(seen) == 1
        # All metrics count the same steps.
        assert examples == EXAMPLES * sum(seen)
        assert shown == sum(seen)
    # Nothing is lost with a task that only stops.
    (_, undisturbed, _), *trained, (_, evaluated, _) = result["epochs"]
    assert min(undisturbed) == 1
    # A training step is not repeated only for its metrics: if the worker was lost after
    # the step, and before its result was fetched, its metrics are lost.
    for _, seen, _ in trained:
        assert np.count_nonzero(np.equal(seen, 0)) in (0, per_execution)
    assert min(evaluated) == 1


def test_lost_parameter_server_ends_fit_with_an_error(training):
    _, result = training
    assert result["raised"].startswith("UnavailableError: ")
    assert "/job:ps/replica:0/task:0" in result["raised"]
