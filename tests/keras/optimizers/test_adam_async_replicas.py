"""AdamAsync under strategies that have several replicas, in one process or in two."""

from collections.abc import Callable
from typing import Any

import clusters
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf

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
DEVICES = ["CPU:0", "CPU:1"]
OPTIONS = {
    "plain": {},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "weight_decay": {"weight_decay": 0.5},
    "average": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
}
OF_TASKS = {"weight_decay": {"weight_decay": 0.5}}
IN_ONE_PROCESS = ("mirrored", "central_storage")
# What is compared: a strategy, and options that it is trained with.
CASES = [
    *((strategy, option) for strategy in IN_ONE_PROCESS for option in OPTIONS),
    *(("multi_worker", option) for option in OF_TASKS),
]
each_case = pytest.mark.parametrize(("strategy", "option"), CASES)
each_context = pytest.mark.parametrize("context", CONTEXTS)
in_one_process = pytest.mark.parametrize("strategy", IN_ONE_PROCESS)


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


def train_all(strategy, contexts, all_options, wrap):
    return {
        context: {
            option: train(strategy, context, options, wrap)
            for option, options in all_options.items()
        }
        for context in contexts
    }


def trained(is_function, all_options):
    """What comes of steps that are functions, or not, with options by name.

    It has a process of its own, because logical devices have to be set up before
    TensorFlow starts, and because eager and compiled collectives of one process get
    mixed up.
    """
    keras_variants.make_two_cpus()
    wrap = tf.function if is_function else lambda step: step
    distribute, result = tf.distribute, {}
    for name, strategy in (
        ("mirrored", distribute.MirroredStrategy(DEVICES)),
        (
            "central_storage",
            distribute.experimental.CentralStorageStrategy(DEVICES, "CPU:0"),
        ),
    ):
        result[name] = train_all(strategy, (*CONTEXTS, "whole"), all_options, wrap)
    return result


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


def train_as_a_task():
    """What comes of steps whose replicas are tasks: this one's number is its task's."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    result = train_all(strategy, CONTEXTS, OF_TASKS, tf.function)
    return {**result, "v1": train_v1(strategy)}


@pytest.fixture(scope="module")
def tasks():
    """The reports of two tasks."""
    names = ("worker-0", "worker-1")
    cluster = clusters.Cluster(
        num_workers=2, num_ps=0, chief=False, env=programs.environment()
    )
    # It is not entered, since the tasks run the program and do not serve.
    try:
        for name in names:
            cluster.start(name, programs.call_command(train_as_a_task))
        for name in names:
            assert cluster.wait(name) == 0, cluster.output(name)[-5000:]
        return [programs.result_in(cluster.output(name)) for name in names]
    finally:
        cluster.__exit__()


@pytest.fixture(scope="module")
def in_functions():
    return programs.call(trained, True, OPTIONS)


@pytest.fixture(scope="module")
def training(request):
    """Finds what came of training: a report for each process of the strategy."""

    def find(strategy, context, option):
        if strategy == "multi_worker":
            tasks = request.getfixturevalue("tasks")
            return [task[context][option] for task in tasks]
        return [request.getfixturevalue("in_functions")[strategy][context][option]]

    return find


@pytest.fixture(scope="module")
def run_eagerly():
    return programs.call(trained, False, {"plain": {}})


def assert_trained(report, options):
    expected = train_alone(tfs.keras.AdamAsync(0.25, **options))
    for got, want in zip(report["values"], expected, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)
    assert report["iterations"] == 3


@each_case
def test_replicas_gradients_are_summed(training, strategy, option):
    for report in training(strategy, "replica", option):
        assert_trained(report, OPTIONS[option])


@each_case
def test_slots_and_updates_are_the_same_outside_of_replicas(training, strategy, option):
    """There slots are made before; in replicas, the first step makes them."""
    inside, outside = (training(strategy, x, option) for x in CONTEXTS)
    assert inside == outside


@pytest.mark.parametrize("option", OPTIONS)
@in_one_process
def test_tensors_outside_of_replicas_are_the_whole_gradient(training, strategy, option):
    (report,) = training(strategy, "whole", option)
    assert_trained(report, OPTIONS[option])


@each_context
@in_one_process
def test_eager_updates_are_the_same(run_eagerly, strategy, context):
    assert_trained(run_eagerly[strategy][context]["plain"], {})


@each_context
@each_case
def test_variables_and_slots_stay_identical(training, strategy, context, option):
    first, *others = training(strategy, context, option)
    # They are two variables, their slots, the number of steps, perhaps averages and a
    # rate.
    assert len(first["copies"]) >= 11
    assert {len(x) for x in first["copies"]} == {2 if strategy == "mirrored" else 1}
    assert all(x[0] == x[-1] for x in first["copies"])
    assert all(other == first for other in others)


def test_v1_optimizer_sums_gradients_and_keeps_both_tasks_identical(tasks):
    variables = train_alone(tfs.train.AdamAsyncOptimizer(0.25))
    first, second = (task["v1"] for task in tasks)
    for (value, *_), expected in zip(first, variables, strict=True):
        np.testing.assert_allclose(value, expected.numpy(), rtol=1e-5)
    assert first == second
    assert [len(state) for state in first] == [5, 5]
