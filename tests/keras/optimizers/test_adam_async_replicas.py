"""AdamAsync under strategies that have several replicas, in one process or in two."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import clusters
import keras_variants
import programs
import pytest
import tensorflow as tf
import waiting
from same import assert_same

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

STEPS = 3


def make_variables() -> list[tf.Variable]:
    return [tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3]))]


def gradients() -> tuple[tf.IndexedSlices, tf.Tensor]:
    """A sparse and a dense gradient of this replica."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    size = tf.cast(replica + 1, tf.float32)
    rows, shape = tf.stack([replica, 3]), tf.constant([5, 2])
    return tf.IndexedSlices(size * tf.ones([2, 2]), rows, shape), size * tf.ones([3])


def whole_gradients() -> tuple[tf.IndexedSlices, tf.Tensor]:
    """The sum of both replicas' gradients."""
    values = tf.constant([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]])
    rows, shape = tf.constant([0, 3, 1, 3]), tf.constant([5, 2])
    return tf.IndexedSlices(values, rows, shape), 3.0 * tf.ones([3])


def train_alone(optimizer: Any) -> list[tf.Variable]:
    """Makes the steps without a strategy, with the sum of the gradients."""
    variables = make_variables()
    for _ in range(STEPS):
        optimizer.apply_gradients(zip(whole_gradients(), variables, strict=True))
    return variables


def make_steps(
    strategy: Any, context: str, optimizer: Any, variables: Any, wrap: Callable
) -> None:
    """Makes the steps in replicas; outside of them; or with the "whole" gradients."""

    def update(*grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    @wrap
    def step():
        if context == "replica":
            strategy.run(lambda: update(*gradients()))
        elif context == "cross_replica":
            update(*strategy.run(gradients))
        else:
            update(*whole_gradients())

    with strategy.scope():
        for _ in range(STEPS):
            step()


CONTEXTS = ("replica", "cross_replica")
OPTIONS = {
    "plain": {},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "weight_decay": {"weight_decay": 0.5},
    "average": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
}
# How steps are made, and the options that they are made with.
KINDS = {"mirrored": [*OPTIONS], "eager": ["plain"], "tasks": ["weight_decay"]}
each_case = pytest.mark.parametrize(
    ("kind", "option"), [(kind, option) for kind in KINDS for option in KINDS[kind]]
)


def copies(strategy, variable):
    """The values of a variable on all replicas of this process."""
    parts = strategy.experimental_local_results(keras_variants.native(variable))
    return [part.numpy().tolist() for part in parts]


def train(strategy, context, options, wrap):
    """Three steps; returns the variables and the number of steps."""
    with strategy.scope():
        variables = make_variables()
        optimizer = tfs.keras.AdamAsync(0.25, **options)
        # In replicas, the first step makes the slots.
        if context != "replica":
            optimizer.build(variables)
    make_steps(strategy, context, optimizer, variables, wrap)
    return {
        "values": [x.numpy().tolist() for x in variables],
        "iterations": int(optimizer.iterations.numpy()),
        "copies": [copies(strategy, x) for x in (*variables, *optimizer.variables)],
    }


def train_all(strategy, kind, contexts, wrap):
    return {
        context: {
            option: train(strategy, context, OPTIONS[option], wrap)
            for option in KINDS[kind]
        }
        for context in contexts
    }


def train_mirrored(kind):
    """Trains in two replicas of this process.

    It has a process of its own, because logical devices have to be set up before
    TensorFlow starts, and because eager and compiled collectives of one process get
    mixed up.
    """
    keras_variants.make_two_cpus()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    wrap = tf.function if kind == "mirrored" else lambda step: step
    return train_all(strategy, kind, (*CONTEXTS, "whole"), wrap)


def train_v1(strategy):
    """Three steps of the v1 optimizer; returns the variables of this task."""
    with strategy.scope():
        variables = make_variables()
    optimizer = tfs.train.AdamAsyncOptimizer(0.25)
    make_steps(strategy, "replica", optimizer, variables, tf.function)

    def state_of(variable):
        names = optimizer.get_slot_names()
        slots = (optimizer.get_slot(variable, name) for name in names)
        return [x.numpy().tolist() for x in (variable, *slots)]

    return [state_of(variable) for variable in variables]


def train_as_a_task(folder):
    """What comes of steps whose replicas are tasks: this one's number is its task's."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    result = train_all(strategy, "tasks", CONTEXTS, tf.function)
    result["v1"] = train_v1(strategy)
    # The other task may still read what this one has of the last collective.
    pathlib.Path(folder, str(strategy.cluster_resolver.task_id)).touch()
    waiting.until(lambda: len(os.listdir(folder)) == 2)
    return result


def of_two_tasks(folder):
    names = ("worker-0", "worker-1")
    cluster = clusters.Cluster(
        num_workers=2, num_ps=0, chief=False, env=programs.environment()
    )
    # It is not entered, since the tasks run the program and do not serve.
    try:
        for name in names:
            cluster.start(name, programs.call_command(train_as_a_task, str(folder)))
        for name in names:
            assert cluster.wait(name) == 0, cluster.output(name)[-5000:]
        return [programs.result_in(cluster.output(name)) for name in names]
    finally:
        cluster.__exit__()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each process reports of each kind of training."""
    in_one_process = ("mirrored", "eager")
    found = {kind: [programs.call(train_mirrored, kind)] for kind in in_one_process}
    return {**found, "tasks": of_two_tasks(tmp_path_factory.mktemp("done"))}


def assert_trained(report, options):
    expected = train_alone(tfs.keras.AdamAsync(0.25, **options))
    assert_same(report["values"], [x.numpy() for x in expected], 1e-5)
    assert report["iterations"] == STEPS


@each_case
def test_replicas_gradients_are_summed(reports, kind, option):
    for report in reports[kind]:
        assert_trained(report["replica"][option], OPTIONS[option])


@each_case
def test_slots_and_updates_are_the_same_outside_of_replicas(reports, kind, option):
    """There slots are made before; in replicas, the first step makes them."""
    for report in reports[kind]:
        assert report["replica"][option] == report["cross_replica"][option]


@pytest.mark.parametrize("option", OPTIONS)
def test_tensors_outside_of_replicas_are_the_whole_gradient(reports, option):
    (report,) = reports["mirrored"]
    assert_trained(report["whole"][option], OPTIONS[option])


@each_case
def test_variables_and_slots_stay_identical(reports, kind, option):
    first, *others = (report["replica"][option] for report in reports[kind])
    # They are two variables, their slots, the number of steps, perhaps averages and a
    # rate.
    assert len(first["copies"]) >= 11
    assert {len(x) for x in first["copies"]} == {1 if kind == "tasks" else 2}
    assert all(x[0] == x[-1] for x in first["copies"])
    assert all(other == first for other in others)


def test_v1_optimizer_sums_gradients_and_keeps_both_tasks_identical(reports):
    variables = train_alone(tfs.train.AdamAsyncOptimizer(0.25))
    first, second = (task["v1"] for task in reports["tasks"])
    assert_same([x[0] for x in first], [x.numpy() for x in variables], 1e-5)
    assert first == second
    assert [len(state) for state in first] == [5, 5]
