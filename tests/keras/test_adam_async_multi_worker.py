"""AdamAsync under MultiWorkerMirroredStrategy, in two real processes."""

import pathlib
import sys

import clusters
import numpy as np
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("multi_worker_program.py")
TASKS = ("worker-0", "worker-1")

each_context = pytest.mark.parametrize("context", ["replica", "cross_replica"])


@pytest.fixture(scope="module")
def tasks():
    """The reports of both tasks."""
    cluster = clusters.Cluster(
        num_workers=2, num_ps=0, chief=False, env=programs.environment()
    )
    # It is not entered, since the tasks run the program and do not serve.
    try:
        for name in TASKS:
            cluster.start(name, [sys.executable, str(PROGRAM)])
        for name in TASKS:
            assert cluster.wait(name) == 0, cluster.output(name)[-5000:]
        return [programs.result_in(cluster.output(name)) for name in TASKS]
    finally:
        cluster.__exit__()


def train_alone(optimizer):
    """The tasks' three steps as one step; returns the variables."""
    variables = [tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3]))]
    values = tf.constant([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]])
    rows = tf.constant([0, 3, 1, 3])
    for _ in range(3):
        table_gradient = tf.IndexedSlices(values, rows, tf.constant([5, 2]))
        grads = table_gradient, 3.0 * tf.ones([3])
        optimizer.apply_gradients(zip(grads, variables, strict=True))
    return variables


@each_context
def test_replicas_gradients_are_summed(tasks, context):
    variables = train_alone(tfs.keras.AdamAsync(0.25, weight_decay=0.5))
    for task in tasks:
        training = task["updates"][context]
        assert training["iterations"] == 3
        for (value, *_), expected in zip(training["states"], variables, strict=True):
            np.testing.assert_allclose(value, expected.numpy(), rtol=1e-5)


def test_v1_optimizer_sums_gradients_and_keeps_both_tasks_identical(tasks):
    variables = train_alone(tfs.train.AdamAsyncOptimizer(0.25))
    first, second = (task["v1"] for task in tasks)
    for (value, *_), expected in zip(first, variables, strict=True):
        np.testing.assert_allclose(value, expected.numpy(), rtol=1e-5)
    assert first == second
    assert [len(state) for state in first] == [5, 5]


@each_context
def test_variables_and_slots_are_identical_in_both_tasks(tasks, context):
    first, second = (task["updates"][context] for task in tasks)
    assert first == second


def test_cross_replica_update_is_as_good_as_a_replicas(tasks):
    for task in tasks:
        assert task["updates"]["cross_replica"] == task["updates"]["replica"]


def test_a_model_learns_and_stays_the_same_in_both_tasks(tasks):
    first, second = (task["learning"] for task in tasks)
    assert first["losses"][-1] < first["losses"][0] / 2
    assert first["iterations"] == 40
    assert first == second
