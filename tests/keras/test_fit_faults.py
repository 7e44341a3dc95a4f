"""tfs.keras.fit while other tasks of its cluster are killed."""

import clusters
import keras_sync_replicas
import keras_variants
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

# Of what is killed here Keras 2 knows little: by night.
pytestmark = [] if keras_variants.IS_KERAS_3 else [pytest.mark.slow]

STEPS, EXAMPLES = 300, 64


class Watch(tf.keras.callbacks.Callback):
    """Counts steps, as `fit` reports them, and the examples that a metric counts."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric
        self.steps, self.examples = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append(0)
        self.examples.append(0)

    def on_train_batch_end(self, batch, logs=None):
        before, self.steps[-1] = self.steps[-1], batch + 1
        self.examples[-1] = int(self.metric.count)
        if before <= STEPS // 10 <= batch:
            print("UNDER WAY", flush=True)


def train(model, metric):
    watch = Watch(metric)
    data = tf.data.Dataset.from_tensors(keras_variants.small_data())
    try:
        history = tfs.keras.fit(
            model,
            data,
            steps_per_epoch=STEPS,
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


def train_twice(per_execution):
    """Says whenever another tenth of an epoch's steps is done."""
    with keras_sync_replicas.make_strategy().scope():
        model = keras_variants.small_model()
        metric = tf.keras.metrics.MeanAbsoluteError(name="mae")
        model.compile(
            tfs.keras.AdamAsync(0.01),
            loss="mse",
            metrics=[metric],
            steps_per_execution=per_execution,
        )
    return [train(model, metric) for _ in range(2)]


@pytest.fixture(scope="module", params=[1, pytest.param(8, marks=pytest.mark.slow)])
def trainings(request):
    """Returns results of a fit that lost workers and of one that lost a server.

    The steps of an execution come before them.
    """
    env = programs.environment()
    with clusters.Cluster(num_workers=2, num_ps=1, env=env) as cluster:
        cluster.start("chief", programs.call_command(train_twice, request.param))
        # They are killed in the first and in the second epoch. TensorFlow itself waits
        # for a lost worker to come back before it accepts another one that has come
        # back.
        for number, worker in enumerate(["worker-1", "worker-0"], start=1):
            cluster.wait_for_output("chief", "UNDER WAY", occurrence=number)
            cluster.kill(worker)
            cluster.restart(worker)
        cluster.wait_for_output("chief", "UNDER WAY", occurrence=3)
        cluster.kill("ps-0")
        assert cluster.wait("chief") == 0, cluster.output("chief")
        return request.param, *programs.result_in(cluster.output("chief"))


def test_fit_goes_on_over_workers_that_are_killed_and_restarted(trainings):
    per_execution, training, _ = trainings
    assert training["raised"] is None
    assert training["steps"] == [STEPS, STEPS]
    # If a worker is lost during an execution, the execution is made again, so its steps
    # may count twice on servers, but not in metrics. The result of an execution that
    # was over may be lost.
    assert 2 * STEPS <= training["iterations"] <= 2 * (STEPS + per_execution)
    for examples in training["examples"]:
        lost = STEPS - examples / EXAMPLES
        assert lost in (0, 1, per_execution)
    assert training["loss"][1] < 0.5


def test_lost_parameter_server_ends_fit_with_an_error(trainings):
    *_, training = trainings
    assert training["raised"].startswith("UnavailableError: ")
    assert "/job:ps/replica:0/task:0" in training["raised"]
