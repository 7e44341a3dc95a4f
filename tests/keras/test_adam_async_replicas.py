"""AdamAsync under strategies that have several replicas in one process."""

import pathlib

import numpy as np
import programs
import pytest
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("replicas_program.py")
STRATEGIES = ("mirrored", "central_storage")
OPTIONS = {
    "plain": {},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "weight_decay": {"weight_decay": 0.5},
    "average": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
}

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
each_option = pytest.mark.parametrize("option", OPTIONS)
each_context = pytest.mark.parametrize("context", ["replica", "cross_replica"])


@pytest.fixture(scope="module")
def in_functions():
    return programs.run(PROGRAM, True, OPTIONS)


@pytest.fixture(scope="module")
def run_eagerly():
    return programs.run(PROGRAM, False, {"plain": {}})


def train_without_strategy(options):
    """The twin of the program, with the sum of the replicas' gradients."""
    variables = [tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3]))]
    optimizer = tfs.keras.AdamAsync(0.25, **options)
    values = tf.constant([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]])
    rows = tf.constant([0, 3, 1, 3])
    table_gradient = tf.IndexedSlices(values, rows, tf.constant([5, 2]))
    for _ in range(3):
        grads = table_gradient, 3.0 * tf.ones([3])
        optimizer.apply_gradients(zip(grads, variables, strict=True))
    return [x.numpy() for x in variables]


def assert_values_are(actual, expected):
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@each_option
@each_strategy
def test_replicas_gradients_are_summed(in_functions, strategy, option):
    training = in_functions[strategy]["replica"][option]
    assert_values_are(training["values"], train_without_strategy(OPTIONS[option]))
    assert training["iterations"] == 3


@each_option
@each_strategy
def test_cross_replica_update_is_as_good_as_a_replicas(in_functions, strategy, option):
    training = in_functions[strategy]
    from_replicas, from_outside = training["replica"], training["cross_replica"]
    assert from_outside[option] == from_replicas[option]


@each_option
@each_strategy
def test_tensors_outside_of_replicas_are_the_whole_gradient(
    in_functions, strategy, option
):
    training = in_functions[strategy]["whole"][option]
    assert_values_are(training["values"], train_without_strategy(OPTIONS[option]))


@each_option
@each_strategy
def test_slots_made_in_replicas_are_those_made_before(in_functions, strategy, option):
    # Only if steps are made in replicas, the first of them makes the slots.
    in_replicas, before = (
        in_functions[strategy][context][option]["copies"]
        for context in ("replica", "cross_replica")
    )
    assert in_replicas == before


@each_context
@each_strategy
def test_eager_updates_are_the_same(run_eagerly, strategy, context):
    training = run_eagerly[strategy][context]["plain"]
    assert_values_are(training["values"], train_without_strategy({}))
    assert training["iterations"] == 3


@each_option
@each_context
def test_mirrored_variables_and_slots_stay_identical(in_functions, context, option):
    copies = in_functions["mirrored"][context][option]["copies"]
    # They are two variables, their slots, the number of steps, perhaps averages and a
    # rate.
    assert len(copies) >= 11
    for first, second in copies:
        assert first == second


@each_context
def test_central_storage_has_one_copy(in_functions, context):
    copies = in_functions["central_storage"][context]["plain"]["copies"]
    assert {len(values) for values in copies} == {1}


@each_strategy
def test_fit_learns(in_functions, strategy):
    fit = in_functions[strategy]["fit"]
    assert fit["losses"][-1] < fit["losses"][0] / 2
    assert fit["iterations"] == 40


def test_batch_normalization_works_beside_mirrored_variables(in_functions):
    fit = in_functions["mirrored"]["fit"]
    for first, second in fit["copies"]:
        assert first == second
    # They belong to the first layer; each replica has its own until they are read.
    averages = [x for x in fit["moving_statistics"] if np.shape(x) == (12,)]
    assert len(averages) == 2
    for statistics, start in zip(averages, (0.0, 1.0), strict=True):
        assert np.abs(np.subtract(statistics, start)).min() > 0
