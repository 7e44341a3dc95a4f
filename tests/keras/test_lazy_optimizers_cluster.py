"""Optimizers with rules, asynchronously, on a cluster of real processes."""

import clusters
import keras_variants
import numpy as np
import programs
import pytest
import rule_reference
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

ROWS, DIM, STEPS = 10, 4, 100
ROUNDED = "rounded"
OPTIMIZERS = {
    "sgd": lambda: tfs.keras.SGD(0.25),
    "adagrad": lambda: tfs.keras.Adagrad(0.25),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.25),
    "ftrl": lambda: tfs.keras.FTRL(0.25),
    "momentum": lambda: tfs.keras.SGD(0.25, momentum=0.5),
    "nesterov": lambda: tfs.keras.SGD(0.25, momentum=0.5, nesterov=True),
    ROUNDED: lambda: tfs.keras.SGD(0.001, stochastic_rounding=True),
}
# The numbers of the rules, and the slots' initial values.
RULES = {
    "sgd": ({}, {}),
    "adagrad": ({"epsilon": 1e-7}, {"accumulator": 0.1}),
    "rowwise_adagrad": ({"epsilon": 1e-8}, {"accumulator": 0.0}),
    "ftrl": (
        {"lr_power": -0.5, "l1": 0.0, "l2": 0.0, "l2_shrinkage": 0.0, "beta": 0.0},
        {"accumulator": 0.1, "linear": 0.0},
    ),
    "momentum": ({"momentum": 0.5}, {"momentum": 0.0}),
    "nesterov": ({"momentum": 0.5}, {"momentum": 0.0}),
}


def values_of(variable):
    return keras_variants.native(variable).numpy().astype(float).tolist()


def train(strategy, coordinator, name):
    """All workers together make steps, whose gradients are ones."""
    dtype = "bfloat16" if name == ROUNDED else "float32"
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((3,), dtype="int32"),
                tfs.keras.Embedding(ROWS, DIM, dtype=dtype),
                tf.keras.layers.GlobalAveragePooling1D(dtype=dtype),
                tf.keras.layers.Dense(2, dtype=dtype),
            ]
        )
        optimizer = OPTIMIZERS[name]()
        optimizer.build(model.trainable_variables)
    variables = model.trainable_variables
    start = [values_of(x) for x in variables]

    def gradient_of(variable):
        if variable.shape[-1] != DIM:
            return tf.ones(variable.shape)
        # Rows of a part; the first occurs twice.
        return tf.IndexedSlices(tf.ones([3, DIM]), tf.constant([0, 1, 0]))

    @tf.function
    def step():
        def update():
            gradients = [gradient_of(x) for x in variables]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        strategy.run(update)

    for _ in range(STEPS):
        coordinator.schedule(step)
    coordinator.join()
    return {
        "iterations": int(keras_variants.native(optimizer.iterations).numpy()),
        "variables": [
            {
                "start": before,
                "value": values_of(variable),
                "slots": {kind: values_of(x) for kind, x in slots.items()},
                "devices": [
                    keras_variants.native(x).device for x in (variable, *slots.values())
                ],
            }
            for before, variable, slots in zip(
                start, variables, map(optimizer.slots, variables), strict=True
            )
        ],
    }


def trained():
    strategy = make_strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    return {name: train(strategy, coordinator, name) for name in OPTIMIZERS}


@pytest.fixture(scope="module")
def training():
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        return programs.call(trained, env=cluster.environment())


@pytest.mark.parametrize("name", RULES)
def test_no_update_of_any_worker_is_lost(training, name):
    """All gradients are equal, so that the order of the updates does not matter."""
    numbers, initial = RULES[name]
    result = training[name]
    assert result["iterations"] == STEPS
    for variable in result["variables"]:
        var = np.array(variable["start"])
        slots = {
            key: np.full(rule_reference.slot_shape(name, var.shape), value)
            for key, value in initial.items()
        }
        is_table = var.shape[-1] == DIM
        gradient = (np.ones([3, DIM]), [0, 1, 0]) if is_table else (np.ones_like(var),)
        for _ in range(STEPS):
            var, slots = rule_reference.apply(
                name, var, slots, {"lr": 0.25, **numbers}, *gradient
            )
        np.testing.assert_allclose(variable["value"], var, rtol=1e-3, atol=1e-3)
        for key, slot in slots.items():
            np.testing.assert_allclose(variable["slots"][key], slot, rtol=1e-3)


def test_rounded_updates_of_all_workers_are_counted_and_right_on_average(training):
    for variable in training[ROUNDED]["variables"]:
        assert variable["slots"] == {"rounding_count": [-STEPS]}
        moved = np.array(variable["start"]) - np.array(variable["value"])
        # The first row of a table's part occurs twice, and the second once.
        is_table = moved.shape[-1] == DIM
        wanted = np.full(moved.shape, STEPS * 0.001)
        if is_table:
            wanted[0], wanted[2:] = 2 * wanted[0], 0
        # Kernels are up to 2, where half of the last place is 2^-8.
        deviation = 2.0**-8 * np.sqrt(STEPS)
        np.testing.assert_allclose(moved, wanted, atol=5 * deviation)
        np.testing.assert_allclose(moved.mean(), wanted.mean(), atol=0.02)


@pytest.mark.parametrize("name", RULES)
def test_slots_are_beside_their_variables(training, name):
    devices = [{*variable["devices"]} for variable in training[name]["variables"]]
    assert all(len(of_variable) == 1 for of_variable in devices)
    assert len(set.union(*devices)) == 2
