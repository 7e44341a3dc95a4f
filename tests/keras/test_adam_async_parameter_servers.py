"""AdamAsync under ParameterServerStrategy, on a cluster of real processes."""

import contextlib
import tempfile

import adam_async_reference as reference
import clusters
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs

ROWS, DIM = 10, 4
STEPS = 200
# Ways of partitioning variables. Keras 3 cannot train such models.
NUM_PARTS = (1,) if keras_variants.IS_KERAS_3 else (1, 2)
keras_2_only = pytest.mark.skipif(
    keras_variants.IS_KERAS_3, reason="Keras 3 has no fit under this strategy"
)


def gradient_of_ones(variable):
    """Sparse for the table and its parts, with row 1 twice; dense for the rest."""
    if variable.shape[1:] != (DIM,):
        return tf.ones(variable.shape)
    shape = tf.constant(list(variable.shape))
    return tf.IndexedSlices(tf.ones([2, DIM]), tf.constant([1, 1]), shape)


def report_on(optimizer, variable):
    """The place and the values of a variable, or part of one, and of its slots."""
    slots = optimizer.slots(variable).values()
    return {
        "device": keras_variants.native(variable).device,
        "slot_devices": [keras_variants.native(x).device for x in slots],
        "state": [x.numpy().tolist() for x in (variable, *slots)],
    }


def train_concurrently(strategy, coordinator):
    """Schedules steps of constant gradients, which all workers run at once."""
    with strategy.scope():
        # Keras 2 refers only weakly to what its parts belong to.
        model = keras_variants.small_model()
        variables = model.trainable_variables
        optimizer = tfs.keras.AdamAsync(0.01)
        optimizer.build(variables)
        steps = tf.Variable(0, dtype=tf.int64)
    start = [x.numpy().tolist() for x in variables]

    def update():
        grads = [gradient_of_ones(x) for x in variables]
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    @tf.function
    def step():
        strategy.run(update)
        steps.assign_add(1)

    def outcome():
        return {
            "iterations": int(optimizer.iterations.numpy()),
            "variables": [report_on(optimizer, x) for x in variables],
        }

    for _ in range(STEPS):
        coordinator.schedule(step)
    coordinator.join()
    result = {"start": start, "steps": int(steps.numpy()), "scheduled": outcome()}
    # One more step comes from the coordinator, which is in cross-replica context.
    with strategy.scope():
        tf.function(update)()
    return {**result, "from_the_coordinator": outcome()}


def train_v1(strategy, coordinator):
    """The same by the v1 optimizer, whose slots are made in the first step."""
    with strategy.scope():
        variables = [tf.Variable(tf.ones([ROWS, DIM])), tf.Variable(tf.ones([3]))]
    optimizer = tfs.train.AdamAsyncOptimizer(0.01)

    @tf.function
    def step():
        def update():
            grads = [gradient_of_ones(x) for x in variables]
            optimizer.apply_gradients(zip(grads, variables, strict=True))

        strategy.run(update)

    for _ in range(STEPS):
        coordinator.schedule(step)
    coordinator.join()

    def report_on_it(variable):
        names = optimizer.get_slot_names()
        slots = [optimizer.get_slot(variable, name) for name in names]
        return {
            "device": variable.device,
            "slot_devices": [slot.device for slot in slots],
            "value": variable.numpy().tolist(),
            "power": float(optimizer.get_slot(variable, "beta1_power").numpy()),
        }

    return [report_on_it(variable) for variable in variables]


def train_custom_loop(strategy, coordinator):
    """A model's own gradients in a scheduled loop, with all of Keras's extras."""
    words, targets = map(tf.constant, keras_variants.small_data())
    with strategy.scope():
        model = keras_variants.small_model()
        optimizer = tfs.keras.AdamAsync(
            keras_variants.slow_decay(0.05),
            global_clipnorm=5.0,
            weight_decay=1e-4,
            use_ema=True,
            ema_overwrite_frequency=20,
        )
        optimizer.build(model.trainable_variables)

    @tf.function
    def step():
        def run():
            return keras_variants.update(
                optimizer,
                model.trainable_variables,
                lambda: tf.reduce_mean((model(words, training=True) - targets) ** 2),
            )

        return strategy.run(run)

    losses = [coordinator.schedule(step) for _ in range(60)]
    coordinator.join()
    losses = [float(x.fetch()) for x in losses]
    return {"losses": losses, "iterations": int(optimizer.iterations.numpy())}


def synchronous(inner):
    """No gradient comes late beside a spare one, so that the updates can be counted."""
    return tfs.keras.SyncReplicas(inner, 2, 2, spares=False)


def train_unbuilt(strategy, coordinator):
    """TensorFlow's tutorial, in which optimizers make their slots in the first step."""
    with strategy.scope():
        # Keras 2 refers only weakly to what its parts belong to.
        model = keras_variants.small_model()
        variables = model.trainable_variables
        optimizers = {
            "adam_async": tfs.keras.AdamAsync(0.01),
            "sync_adam_async": synchronous(tfs.keras.AdamAsync(0.01)),
            "sync_adam": synchronous(tf.keras.optimizers.Adam(0.01)),
        }

    def place(variable):
        variable = keras_variants.native(variable)
        return [list(variable.shape), variable.device]

    def train(optimizer):
        is_synchronous = isinstance(optimizer, tfs.keras.SyncReplicas)
        gradient_step = optimizer.step if is_synchronous else contextlib.nullcontext

        def update():
            grads = [gradient_of_ones(x) for x in variables]
            optimizer.apply_gradients(zip(grads, variables, strict=True))

        @tf.function
        def step():
            with gradient_step():
                strategy.run(update)

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

    return {name: train(optimizer) for name, optimizer in optimizers.items()}


def fit(strategy):
    """Model.fit, saved half way and continued by another model."""
    dataset = keras_variants.for_ever(*keras_variants.small_data())()

    def compiled():
        with strategy.scope():
            model = keras_variants.small_model()
            optimizer = tfs.keras.AdamAsync(keras_variants.slow_decay(0.05))
            model.compile(optimizer=optimizer, loss="mse")
            model.optimizer.build(model.trainable_variables)
        return model

    def state(model):
        optimizer = model.optimizer
        return [report_on(optimizer, x)["state"] for x in model.trainable_variables]

    def run(model):
        history = model.fit(dataset, steps_per_epoch=20, epochs=1, verbose=0)
        return history.history["loss"][0]

    model, restored = compiled(), compiled()
    losses = [run(model)]
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
            f"{folder}/checkpoint"
        )
        checkpoint = tf.train.Checkpoint(model=restored, optimizer=restored.optimizer)
        checkpoint.restore(path).assert_consumed()
    result = {"saved": state(model), "restored": state(restored)}
    losses.append(run(restored))
    return {
        **result,
        "losses": losses,
        "iterations": int(restored.optimizer.iterations.numpy()),
        "powers": [x[3] for x in state(restored)],
    }


def train(num_parts):
    strategy = make_strategy(num_parts)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    result = {"concurrent": train_concurrently(strategy, coordinator)}
    if num_parts == 1:
        result["custom_loop"] = train_custom_loop(strategy, coordinator)
        result["unbuilt"] = train_unbuilt(strategy, coordinator)
        result["v1"] = train_v1(strategy, coordinator)
    # Keras 3 has no fit under this strategy.
    if not keras_variants.IS_KERAS_3:
        result["fit"] = fit(strategy)
    return result


@pytest.fixture(scope="module")
def cluster():
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=NUM_PARTS, ids=lambda n: f"{n}_parts")
def training(request, cluster):
    return programs.call(train, request.param, env=cluster.environment())


def steps_made(power):
    """How many steps a power of 0.9 has seen, as a number with a fraction."""
    return np.log(power) / np.log(np.float32(0.9)) - 1


def test_no_step_of_any_worker_is_lost(training):
    concurrent = training["concurrent"]
    assert concurrent["steps"] == STEPS
    assert concurrent["scheduled"]["iterations"] == STEPS
    for variable in concurrent["scheduled"]["variables"]:
        _, _, _, beta_1_power, beta_2_power = variable["state"]
        np.testing.assert_allclose(steps_made(beta_1_power), STEPS, atol=0.01)
        np.testing.assert_allclose(beta_2_power, 0.999 ** (STEPS + 1), rtol=1e-4)


def test_dense_updates_of_all_workers_are_those_of_the_twin(training):
    concurrent = training["concurrent"]
    checked = 0
    for start, variable in zip(
        concurrent["start"], concurrent["scheduled"]["variables"], strict=True
    ):
        if np.shape(start)[1:] == (4,):
            continue
        expected = reference.initial_state(start, 0.9, 0.999)
        for _ in range(STEPS):
            expected = reference.adam_async_dense(
                *expected, 0.01, 0.9, 0.999, 1e-7, np.ones_like(start)
            )
        actual = reference.State(*map(np.array, variable["state"]))
        keras_variants.assert_states_close(actual, expected, 2e-4)
        checked += 1
    assert checked >= 2


def test_sparse_updates_of_all_workers_reach_their_rows_alone(training):
    concurrent = training["concurrent"]
    checked = 0
    for start, variable in zip(
        concurrent["start"], concurrent["scheduled"]["variables"], strict=True
    ):
        if np.shape(start)[1:] != (4,):
            continue
        var, m, v = map(np.array, variable["state"][:3])
        others = [row for row in range(len(start)) if row != 1]
        np.testing.assert_array_equal(var[others], np.array(start)[others])
        np.testing.assert_array_equal(m[others], 0)
        # The row came twice in each step, so that its gradient was 2.
        np.testing.assert_allclose(m[1], 2 * (1 - 0.9**STEPS), rtol=1e-4)
        np.testing.assert_allclose(v[1], 4 * (1 - 0.999**STEPS), rtol=1e-4)
        # Workers may have the same value of the power, so this is not exact.
        np.testing.assert_allclose(start[1] - var[1], 0.01 * STEPS, rtol=0.05)
        checked += 1
    assert checked >= 1


def test_slots_are_beside_their_variables(training):
    variables = training["concurrent"]["scheduled"]["variables"]
    for variable in variables:
        assert "/job:ps/" in variable["device"]
        assert variable["slot_devices"] == [variable["device"]] * 4
    assert len({variable["device"] for variable in variables}) == 2


def test_update_from_the_coordinator_counts_as_one_step(training):
    before = training["concurrent"]["scheduled"]
    after = training["concurrent"]["from_the_coordinator"]
    assert after["iterations"] == STEPS + 1
    for variable, earlier in zip(after["variables"], before["variables"], strict=True):
        for power, old_power, beta in zip(
            variable["state"][3:], earlier["state"][3:], (0.9, 0.999), strict=True
        ):
            np.testing.assert_allclose(power, np.multiply(old_power, beta), rtol=1e-5)


def test_custom_loop_learns_with_clipping_decay_and_averages(training):
    if "custom_loop" not in training:
        pytest.skip("partitioned layers are trained by fit")
    losses = training["custom_loop"]["losses"]
    assert training["custom_loop"]["iterations"] == len(losses) == 60
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2


@pytest.mark.parametrize("name", ["adam_async", "sync_adam_async", "sync_adam"])
def test_slots_made_in_the_first_step_are_beside_their_variables(training, name):
    if "unbuilt" not in training:
        pytest.skip("partitioned layers are trained by fit")
    unbuilt = training["unbuilt"][name]
    # No two variables of the model have the same shape.
    for shape, device in unbuilt["variables"]:
        devices = [x for slot, x in unbuilt["slots"] if slot == shape and shape != [1]]
        assert set(devices) <= {device}
        assert shape == [1] or len(devices) == 2
    assert len({device for _, device in unbuilt["variables"]}) == 2
    assert all("/job:ps/" in device for _, device in unbuilt["slots"])
    assert unbuilt["updates"] == (8 if name == "adam_async" else 4)


def test_v1_optimizer_loses_no_step_of_any_worker(training):
    if "v1" not in training:
        pytest.skip("partitioned layers are trained by fit")
    table, vector = training["v1"]
    for variable in (table, vector):
        assert "/job:ps/" in variable["device"]
        assert variable["slot_devices"] == [variable["device"]] * 4
        np.testing.assert_allclose(steps_made(variable["power"]), STEPS, atol=0.01)
    # With a constant gradient each step has the length of the learning rate, though not
    # exactly if workers have the same value of the power.
    np.testing.assert_allclose(vector["value"], 1 - 0.01 * STEPS, atol=0.05)
    np.testing.assert_allclose(table["value"][1], 1 - 0.01 * STEPS, atol=0.05)
    others = np.delete(np.array(table["value"]), 1, axis=0)
    np.testing.assert_array_equal(others, 1.0)


@keras_2_only
def test_fit_learns_and_counts_its_steps(training):
    fit = training["fit"]
    assert fit["losses"][1] < fit["losses"][0] / 2
    assert fit["iterations"] == 40
    for power in fit["powers"]:
        np.testing.assert_allclose(steps_made(power), 40, atol=0.01)


@keras_2_only
def test_checkpoint_restores_every_slot_of_every_part(training):
    assert training["fit"]["restored"] == training["fit"]["saved"]
