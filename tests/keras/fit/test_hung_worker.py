"""A worker hangs (SIGSTOP) while training goes on with it and two others, or waits.

With TensorFlow's own `executor_scope` nobody makes a step while it hangs, in two of
three cases.
"""

import threading
import time

import clusters
import keras_sync_replicas as helpers
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.keras.fit import results

pytestmark = pytest.mark.ci

STEP = "step is over"
# It was 0.17 s at most, on a busy machine.
LONGEST_GAP_SECS = 2.0


def train_by_fit(is_synchronous):
    with helpers.make_strategy().scope():
        model = helpers.make_model()
        optimizer = tfs.keras.AdamAsync(1e-3)
        if is_synchronous:
            optimizer = tfs.keras.SyncReplicas(optimizer, 2, 3)
        model.compile(optimizer, loss=helpers.loss)
    tell = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: print(STEP, flush=True)
    )
    tfs.keras.fit(
        model, helpers.dataset(), steps_per_epoch=10**6, verbose=0, callbacks=[tell]
    )


def train_by_own_loop():
    tfs.keras.isolate_workers()
    strategy = helpers.make_strategy()
    with strategy.scope():
        weight, num_steps = tf.Variable(0.0), tf.Variable(0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    batches = iter(coordinator.create_per_worker_dataset(helpers.dataset))

    @tf.function
    def step(batches):
        inputs, _ = next(batches)
        weight.assign_add(tf.reduce_sum(tf.cast(inputs, tf.float32)))
        num_steps.assign_add(1)

    def schedule():
        while True:
            coordinator.schedule(step, args=(batches,))

    threading.Thread(target=schedule, daemon=True).start()
    told = 0
    while True:
        now = int(num_steps)
        print(f"{STEP}\n" * (now - told), end="", flush=True)
        told = now
        time.sleep(0.01)


def train(kind):
    """Trains in one epoch that is longer than any test, and says each step's end.

    With two gradients of three, "synchronous"; by `tfs.keras.fit`, "asynchronous"; or
    by steps that it schedules itself, "custom".
    """
    if kind == "custom":
        train_by_own_loop()
    else:
        train_by_fit(kind == "synchronous")


def train_impatiently():
    results.FIRST_SECS = 1.0
    train("asynchronous")


def longest_gap(cluster, secs):
    """The longest time without a step within some seconds."""
    now = begin = last = time.monotonic()
    steps, longest = -1, 0.0
    while now < begin + secs:
        steps_now = cluster.output("chief").count(STEP)
        now = time.monotonic()
        longest = max(longest, now - last)
        if steps_now != steps:
            steps, last = steps_now, now
        time.sleep(0.02)
    return longest


@pytest.mark.parametrize(
    ("kind", "hung_secs"),
    [
        ("synchronous", 4.0),
        pytest.param("synchronous", 10.0, marks=pytest.mark.slow),
        pytest.param("asynchronous", 10.0, marks=pytest.mark.slow),
        pytest.param("custom", 10.0, marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_while_a_worker_hangs(kind, hung_secs):
    with clusters.Cluster(3, num_ps=2, env=programs.environment()) as cluster:
        cluster.start("chief", programs.call_command(train, kind))
        cluster.wait_for_output("chief", STEP, occurrence=100)
        for worker in cluster.names("worker"):
            cluster.suspend(worker)
            gap = longest_gap(cluster, hung_secs)
            cluster.resume(worker)
            assert gap < LONGEST_GAP_SECS, worker
            # This makes sure that the second one is not the next to hang.
            steps = cluster.output("chief").count(STEP)
            cluster.wait_for_output("chief", STEP, steps + 100)


def test_log_names_the_worker_for_which_training_waits():
    with clusters.Cluster(1, num_ps=1, env=programs.environment()) as cluster:
        cluster.start("chief", programs.call_command(train_impatiently))
        cluster.wait_for_output("chief", STEP, occurrence=10)
        cluster.suspend("worker-0")
        address = cluster.address("worker-0")
        cluster.wait_for_output("chief", f"Tasks that do not answer: {address}. First")
        cluster.resume("worker-0")
        steps = cluster.output("chief").count(STEP)
        cluster.wait_for_output("chief", STEP, steps + 10)
