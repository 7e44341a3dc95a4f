"""AdamAsync under ParameterServerStrategy, on a cluster of real processes."""

import pathlib

import adam_async_reference as reference
import clusters
import keras_variants
import numpy as np
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("parameter_server_program.py")
STEPS = 200

# Ways of partitioning variables. Keras 3 cannot train such models.
NUM_PARTS = (1,) if keras_variants.IS_KERAS_3 else (1, 2)

keras_2_only = pytest.mark.skipif(
    keras_variants.IS_KERAS_3, reason="Keras 3 has no fit under this strategy"
)


@pytest.fixture(scope="module")
def cluster():
    with clusters.Cluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=NUM_PARTS, ids=lambda n: f"{n}_parts")
def training(request, cluster):
    return programs.run(PROGRAM, request.param, STEPS, env=cluster.environment())


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
