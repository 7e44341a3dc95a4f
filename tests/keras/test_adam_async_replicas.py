"""AdamAsync under strategies that have several replicas in one process."""

import keras_variants
import numpy as np
import programs
import pytest
import replica_steps
import tensorflow as tf

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

CONTEXTS = ("replica", "cross_replica", "whole")
DEVICES = ["CPU:0", "CPU:1"]
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


def strategies():
    yield "mirrored", tf.distribute.MirroredStrategy(DEVICES)
    yield (
        "central_storage",
        tf.distribute.experimental.CentralStorageStrategy(DEVICES, "CPU:0"),
    )


def copies(strategy, variable):
    """The values of a variable on all replicas."""
    parts = strategy.experimental_local_results(keras_variants.native(variable))
    return [part.numpy().tolist() for part in parts]


def train(strategy, context, options, wrap):
    """Three steps; returns the variables and the number of steps."""
    with strategy.scope():
        variables = replica_steps.make_variables()
        optimizer = tfs.keras.AdamAsync(0.25, **options)
        # In replicas, the first step makes the slots.
        if context != "replica":
            optimizer.build(variables)
    replica_steps.train(strategy, context, optimizer, variables, wrap)
    everything = [*variables, *optimizer.variables]
    return {
        "values": [x.numpy().tolist() for x in variables],
        "iterations": int(optimizer.iterations.numpy()),
        "copies": [copies(strategy, x) for x in everything],
    }


def fit(name, strategy):
    """Model.fit; with batch normalization if this Keras can train it."""
    normalize = not (keras_variants.IS_KERAS_3 and name == "central_storage")
    with strategy.scope():
        hidden = [tf.keras.layers.BatchNormalization()] if normalize else []
        model = keras_variants.small_model(*hidden)
        optimizer = tfs.keras.AdamAsync(keras_variants.slow_decay(0.05))
        model.compile(optimizer=optimizer, loss="mse")
    words, targets = keras_variants.small_data()
    history = model.fit(words, targets, batch_size=16, epochs=10, verbose=0)
    trained = [*model.trainable_variables, *model.optimizer.variables]
    return {
        "losses": history.history["loss"],
        "iterations": int(model.optimizer.iterations.numpy()),
        "copies": [copies(strategy, x) for x in trained],
        "moving_statistics": [
            x.numpy().tolist() for x in model.non_trainable_variables
        ],
    }


def trained(is_function, all_options):
    """What comes of steps that are functions, or not, with options by name.

    It has a process of its own, because logical devices have to be set up before
    TensorFlow starts, and because eager and compiled collectives of one process get
    mixed up.
    """
    keras_variants.make_two_cpus()
    wrap = tf.function if is_function else lambda step: step
    result = {}
    for name, strategy in strategies():
        result[name] = {
            context: {
                option: train(strategy, context, options, wrap)
                for option, options in all_options.items()
            }
            for context in CONTEXTS
        }
        if is_function:
            result[name]["fit"] = fit(name, strategy)
    return result


@pytest.fixture(scope="module")
def in_functions():
    return programs.call(trained, True, OPTIONS)


@pytest.fixture(scope="module")
def run_eagerly():
    return programs.call(trained, False, {"plain": {}})


def train_without_strategy(options):
    variables = replica_steps.train_alone(tfs.keras.AdamAsync(0.25, **options))
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
