"""Optimizers under ParameterServerStrategy, on a cluster of real processes."""

import contextlib
import functools

import clusters
import keras_variants
import numpy as np
import optimizer_twins as twins
import programs
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy
from same import assert_same

import tf_syncrep as tfs

ROWS, DIM, STEPS = 10, 4, 100
ROUNDED = "rounded"
RATE = 0.25
# The class of each optimizer, its options, and its twin. With sparse RMSProp, as with
# the rules, it does not matter which step comes first.
RMSPROP = {"apply_sparse_rmsprop": True}
RMSPROP_TWIN = functools.partial(twins.AdamAsync, **RMSPROP)
NESTEROV = {"momentum": 0.5, "nesterov": True}
OPTIMIZERS = {
    "adam_async": (tfs.keras.AdamAsync, RMSPROP, RMSPROP_TWIN),
    "sgd": (tfs.keras.SGD, {}, twins.LazySGD),
    "adagrad": (tfs.keras.Adagrad, {}, twins.LazyAdagrad),
    "rowwise_adagrad": (tfs.keras.RowwiseAdagrad, {}, twins.RowwiseAdagrad),
    "ftrl": (tfs.keras.FTRL, twins.FTRL_OPTIONS, twins.LazyFTRL),
    "momentum": (tfs.keras.SGD, {"momentum": 0.5}, twins.LazyMomentum),
    "nesterov": (tfs.keras.SGD, NESTEROV, twins.LazyNesterov),
}
UNBUILT = {
    "adam_async": lambda: tfs.keras.AdamAsync(0.01),
    "sync_adam_async": lambda: synchronous(tfs.keras.AdamAsync(0.01)),
    "sync_adam": lambda: synchronous(tf.keras.optimizers.Adam(0.01)),
}
# Ways of partitioning variables. Keras 3 cannot train such models.
NUM_PARTS = (1,) if keras_variants.IS_KERAS_3 else (1, 2)


def synchronous(inner):
    """No gradient comes late beside a spare one, so that the updates can be counted."""
    return tfs.keras.SyncReplicas(inner, 2, 2, spares=False)


def values_of(variable):
    return keras_variants.native(variable).numpy().astype(float).tolist()


def gradient_of(variable):
    """Sparse for the table and its parts, whose row 0 occurs twice; else dense."""
    if variable.shape[-1] != DIM:
        return tf.ones(variable.shape)
    shape = tf.constant(list(variable.shape))
    return tf.IndexedSlices(tf.ones([3, DIM]), tf.constant([0, 1, 0]), shape)


def update(optimizer, variables):
    gradients = [gradient_of(x) for x in variables]
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def make_model(dtype="float32"):
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((3,), dtype="int32"),
            tfs.keras.Embedding(ROWS, DIM, dtype=dtype),
            tf.keras.layers.GlobalAveragePooling1D(dtype=dtype),
            tf.keras.layers.Dense(2, dtype=dtype),
        ]
    )


def train(strategy, coordinator, name, make=make_model):
    """All workers together make steps, whose gradients are ones.

    The last comes from the coordinator, which is in cross-replica context.
    """
    with strategy.scope():
        # Keras 2 refers only weakly to what its parts belong to.
        model = make(*["bfloat16"] if name == ROUNDED else [])
        if name == ROUNDED:
            optimizer = tfs.keras.SGD(0.001, stochastic_rounding=True)
        else:
            kind, options, _ = OPTIMIZERS[name]
            optimizer = kind(RATE, **options)
        optimizer.build(model.trainable_variables)
    variables = model.trainable_variables
    start = [values_of(x) for x in variables]

    @tf.function
    def step():
        strategy.run(lambda: update(optimizer, variables))

    for _ in range(STEPS - 1):
        coordinator.schedule(step)
    coordinator.join()
    with strategy.scope():
        tf.function(lambda: update(optimizer, variables))()
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


def train_v1(strategy, coordinator):
    """AdamAsync's v1 optimizer, whose slots are made in the first step."""
    with strategy.scope():
        variables = [tf.Variable(tf.ones([ROWS, DIM])), tf.Variable(tf.ones([3]))]
    # With these each step subtracts the learning rate, in any order of the workers.
    optimizer = tfs.train.AdamAsyncOptimizer(0.01, beta1=0.0, beta2=0.0, epsilon=0.0)

    @tf.function
    def step():
        strategy.run(lambda: update(optimizer, variables))

    for _ in range(STEPS):
        coordinator.schedule(step)
    coordinator.join()

    def report_on(variable):
        slots = [optimizer.get_slot(variable, x) for x in optimizer.get_slot_names()]
        return [variable.numpy().tolist(), [x.device for x in (variable, *slots)]]

    return [report_on(variable) for variable in variables]


def train_unbuilt(strategy, coordinator, name):
    """TensorFlow's tutorial, in which optimizers make their slots in the first step."""
    with strategy.scope():
        model = make_model()
        optimizer = UNBUILT[name]()
    variables = model.trainable_variables
    is_synchronous = isinstance(optimizer, tfs.keras.SyncReplicas)
    gradient_step = optimizer.step if is_synchronous else contextlib.nullcontext

    def place(variable):
        variable = keras_variants.native(variable)
        return [list(variable.shape), variable.device]

    @tf.function
    def step():
        with gradient_step():
            strategy.run(lambda: update(optimizer, variables))

    updater = optimizer.updater(strategy) if is_synchronous else gradient_step()
    with updater:
        for _ in range(8):
            coordinator.schedule(step)
        coordinator.join()
    return {
        "variables": [place(x) for x in variables],
        "slots": [place(x) for x in optimizer.variables],
        "updates": int(optimizer.iterations.numpy()),
    }


def trained(num_parts):
    strategy = make_strategy(num_parts)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    if num_parts > 1:
        small = keras_variants.small_model
        built = train(strategy, coordinator, "adam_async", small)
        return {"built": {"adam_async": built}}
    return {
        "built": {
            name: train(strategy, coordinator, name) for name in (*OPTIMIZERS, ROUNDED)
        },
        "unbuilt": {
            name: train_unbuilt(strategy, coordinator, name) for name in UNBUILT
        },
        "v1": train_v1(strategy, coordinator),
    }


@pytest.fixture(scope="module")
def training():
    """What came of training with so many parts."""
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        env = cluster.environment()
        yield {n: programs.call(trained, n, env=env) for n in NUM_PARTS}


each_training = pytest.mark.parametrize(
    ("num_parts", "name"),
    [
        *((1, name) for name in OPTIMIZERS),
        *((n, "adam_async") for n in NUM_PARTS[1:]),
    ],
)


@each_training
def test_no_update_of_any_worker_is_lost(training, num_parts, name):
    """All gradients are equal, so that the order of the updates does not matter."""
    result, (*_, rule) = training[num_parts]["built"][name], OPTIMIZERS[name]
    assert result["iterations"] == STEPS
    for variable in result["variables"]:
        start = np.array(variable["start"])
        is_table = start.shape[-1] == DIM
        gradient = np.ones_like(start)
        if is_table:
            gradient = np.ones([3, DIM]), np.array([0, 1, 0])
        twin = twins.Twin(rule, [start], lambda _: RATE)
        for _ in range(STEPS):
            twin.apply({0: gradient})
        assert_same(variable["value"], twin.values[0], 1e-3)
        slots = twin.rules[0].slots
        assert variable["slots"].keys() == slots.keys()
        for key, slot in slots.items():
            got = np.reshape(variable["slots"][key], np.shape(slot))
            np.testing.assert_allclose(got, slot, rtol=1e-3, err_msg=key)
        if is_table:
            np.testing.assert_array_equal(variable["value"][2:], start[2:])


def test_rounded_updates_of_all_workers_are_counted_and_right_on_average(training):
    for variable in training[1]["built"][ROUNDED]["variables"]:
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


@each_training
def test_slots_are_beside_their_variables(training, num_parts, name):
    variables = training[num_parts]["built"][name]["variables"]
    devices = [{*variable["devices"]} for variable in variables]
    assert all(len(of_variable) == 1 for of_variable in devices)
    assert len(set.union(*devices)) == 2
    assert all("/job:ps/" in device for device in set.union(*devices))


@pytest.mark.parametrize("name", UNBUILT)
def test_slots_made_in_the_first_step_are_beside_their_variables(training, name):
    unbuilt = training[1]["unbuilt"][name]
    # No two variables of the model have the same shape.
    for shape, device in unbuilt["variables"]:
        devices = [x for slot, x in unbuilt["slots"] if slot == shape]
        assert devices == [device] * 2
    assert len({device for _, device in unbuilt["variables"]}) == 2
    assert all("/job:ps/" in device for _, device in unbuilt["slots"])
    assert unbuilt["updates"] == (8 if name == "adam_async" else 4)


def test_v1_optimizer_loses_no_step_of_any_worker(training):
    for value, devices in training[1]["v1"]:
        assert len(devices) == 5
        assert len(set(devices)) == 1
        assert "/job:ps/" in devices[0]
        steps = np.full(np.shape(value), STEPS)
        if np.shape(value)[-1] == DIM:
            steps[2:] = 0
        np.testing.assert_allclose(value, 1 - 0.01 * steps, atol=1e-3)
