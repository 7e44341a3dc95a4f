"""What AdamAsync's ops have beside the other rules; test_rule_ops.py has the rest."""

import re

import adam_async_reference as reference
import numpy as np
import pytest
import tensorflow as tf
from rule_steps import (
    ADAM_ASYNC,
    DTYPES,
    MODES,
    AdamAsync,
    assert_same_bits,
    random_array,
    slot_dtype,
)

import tf_syncrep as tfs
from tf_syncrep.python.ops import adam_async_ops
from tf_syncrep.python.ops.stochastic_rounding import rounding_inputs

pytestmark = pytest.mark.usefixtures("device")

# With these every number that is worked out by hand is short.
HALVES = {"lr": 1.0, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.0}

each_mode = pytest.mark.parametrize("mode", MODES)
each_case = pytest.mark.parametrize("case", ADAM_ASYNC)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
each_kind = pytest.mark.parametrize("kind", ["dense", "sparse"])


def gradient(kind, state):
    """A gradient of ones, and its indices if it is sparse."""
    var = state.values["var"]
    if kind == "sparse":
        return tf.ones([2, *var.shape[1:]], var.dtype), [0, 4]
    return tf.ones(var.shape, var.dtype), None


def test_the_twin_has_values_computed_by_hand():
    state = reference.initial_state([[10.0], [20.0], [30.0]], 0.5, 0.5)
    state = reference.adam_async_sparse(
        *state, **HALVES, grad=[[0.5], [-7.0], [1.5]], indices=[2, 0, 2]
    )
    # Row 2 sees one gradient of 2, row 0 one of -7, row 1 nothing. In row 2
    # m = 1 and v = 2, so that it moves by sqrt(0.5) / 0.5 * m / sqrt(v) = 1.
    np.testing.assert_allclose(state.var, [[11.0], [20.0], [29.0]])
    np.testing.assert_allclose(state.m, [[-3.5], [0.0], [1.0]])
    np.testing.assert_allclose(state.v, [[24.5], [0.0], [2.0]])
    assert (state.beta1_power, state.beta2_power) == (0.25, 0.25)


def test_the_twins_nesterov_looks_one_gradient_ahead():
    state = reference.initial_state([10.0], 0.5, 0.5)
    state = reference.adam_async_dense(*state, **HALVES, grad=[2.0], use_nesterov=True)
    # The direction is 0.5 * m + 0.5 * g = 1.5 where plain Adam has m = 1.
    np.testing.assert_allclose(state.var, [8.5])
    np.testing.assert_allclose(state.m, [1.0])


@pytest.mark.parametrize(
    ("momentum", "first", "second"),
    # v is 2 and then 3 in every case; a step without momentum is lr * g / sqrt(v).
    [
        (0.0, 2 / np.sqrt(2), 2 / np.sqrt(3)),
        (-1.0, 2 / np.sqrt(2), 0.5 * 2 / np.sqrt(2) + 2 / np.sqrt(3)),
        (0.75, 2 / np.sqrt(2), 0.75 * 2 / np.sqrt(2) + 2 / np.sqrt(3)),
    ],
)
def test_the_twins_rmsprop_has_values_computed_by_hand(momentum, first, second):
    state = reference.initial_state([[10.0]], 0.5, 0.5)
    for step in (first, second):
        before = state
        state = reference.adam_async_sparse(
            *before,
            **HALVES,
            grad=[[2.0]],
            indices=[0],
            apply_sparse_rmsprop=True,
            rmsprop_momentum=momentum,
        )
        np.testing.assert_allclose(state.m, [[step]])
        np.testing.assert_allclose(state.var, before.var - step)
        assert (state.beta1_power, state.beta2_power) == (0.5, 0.5)


@each_dtype
@pytest.mark.parametrize("case", ["adam_async_no_momentum", "adam_async_momentum"])
def test_rmsprop_takes_another_momentum_than_beta1(case, dtype):
    state = AdamAsync(case, (6, 5), dtype)
    indices = np.array([4, 1, 4, 0, 4, 1])
    grad = np.abs(random_array(12, (6, 5), dtype))
    state.check(state.step(grad, indices), grad, indices)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_powers_may_have_any_shape_of_one_element(shape):
    state = AdamAsync("adam_async", (6,))
    for power in ("beta1_power", "beta2_power"):
        state.values[power] = state.values[power].reshape(shape)
    grad = random_array(40, (6,), tf.float32)
    after = state.step(grad)
    state.check(after, grad)
    assert after["beta1_power"].shape == after["beta2_power"].shape == shape


@each_kind
@pytest.mark.parametrize("power", ["beta1_power", "beta2_power"])
@pytest.mark.parametrize(("value", "shape"), [([0.5, 0.5], "[2]"), ([], "[0]")])
def test_powers_must_have_one_element(value, shape, power, kind):
    state = AdamAsync("adam_async", (6, 4))
    state.values[power] = np.array(value, np.float32)
    message = f"{power} must have exactly one element, but has shape {shape}"
    state.expect_error(message, *gradient(kind, state))
    for use_resource in (False, True):
        with tf.Graph().as_default():
            variables = state.make(use_resource)
            with pytest.raises(ValueError, match=re.escape(message)):
                state.apply(variables, *gradient(kind, state))


@each_dtype
def test_a_zero_gradient_at_the_first_step_moves_nothing(dtype):
    """In half arithmetic epsilon 1e-8 is 0, and 0 / 0 would be NaN."""
    state = AdamAsync("adam_async", (9,), dtype)
    for moment in ("m", "v"):
        state.values[moment] *= 0
    after = state.step(np.zeros_like(state.values["var"]))
    np.testing.assert_array_equal(after["var"], state.values["var"])


def test_bfloat16_keeps_its_moving_averages_in_float():
    """In bfloat16 arithmetic 1 - 0.999 is 0, and v would stay at 0."""
    state = AdamAsync("adam_async", (9,), tf.bfloat16)
    state.values["v"] *= 0
    state.numbers["beta2"] = 0.999
    grad = random_array(70, (9,), tf.bfloat16)
    expected = 0.001 * np.square(grad.astype(np.float32))
    np.testing.assert_allclose(state.step(grad)["v"], expected, rtol=1e-4)


def test_a_large_second_moment_is_forgotten_without_cancellation():
    """The form v + (g * g - v) * (1 - beta2) ends at 0 here: a division by epsilon."""
    state = AdamAsync("adam_async", (1000,))
    state.values["v"] *= np.float32(1e30)
    state.numbers["beta2"] = 0.0
    grad = random_array(80, (1000,), tf.float32)
    np.testing.assert_array_equal(state.step(grad)["v"], np.square(grad))


def test_half_gradients_are_summed_in_float():
    """In half, 2048 + 1 is 2048: a thousand further ones would be lost."""
    state = AdamAsync("adam_async", (2, 1), tf.float16)
    state.values["v"] *= 0
    state.numbers["beta2"] = 0.0
    grad = np.concatenate([[[2048.0]], np.ones([1000, 1])]).astype(np.float16)
    after = state.step(grad, np.ones([1001], np.int32))
    np.testing.assert_allclose(np.sqrt(after["v"][1]), 3048.0, rtol=1e-6)


@each_dtype
def test_duplicates_are_summed_in_order_of_occurrence(dtype):
    state = AdamAsync("adam_async", (8, 7), dtype)
    # With beta1 = 0 the first moment is the sum itself.
    state.numbers["beta1"] = 0.0
    grad = random_array(30, (300, 7), tf.float64) ** 5
    grad = grad.astype(dtype.as_numpy_dtype)
    indices = np.random.default_rng(31).integers(0, 2, 300) * 5
    sums = np.zeros([2, 7], slot_dtype(dtype).as_numpy_dtype)
    for row, row_grad in zip(indices // 5, grad, strict=True):
        sums[row] += row_grad.astype(sums.dtype)
    np.testing.assert_array_equal(state.step(grad, indices)["m"][[0, 5]], sums)


def test_hyper_parameters_may_be_tensors_and_variables():
    state = AdamAsync("adam_async", (5,))
    grad = random_array(90, (5,), tf.float32)
    state.numbers.update(lr=tf.Variable(0.25), beta1=tf.constant(0.5))
    after = state.step(grad)
    state.numbers.update(lr=0.25, beta1=0.5)
    state.check(after, grad)


@each_mode
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_no_indices_are_a_step_where_they_are_to_be_counted(index_dtype, mode):
    state = AdamAsync("adam_async", (5, 3))
    grad, indices = np.zeros([0, 3], np.float32), np.zeros([0], index_dtype)
    after = state.step(grad, indices, mode, count_empty=True)
    expected = state.step(np.zeros([5, 3], np.float32))
    powers = {name: expected[name] for name in ("beta1_power", "beta2_power")}
    assert powers["beta1_power"] != state.values["beta1_power"]
    assert_same_bits(after, {**state.values, **powers})


@each_case
@each_mode
def test_without_validation_indices_that_are_no_rows_are_ignored(mode, case):
    state = AdamAsync(case, (6, 5))
    indices = np.array([4, -1, 6, 0, 4, 2**31 - 1, -(2**31)], np.int32)
    grad = np.abs(random_array(130, (len(indices), 5), tf.float32))
    after = state.step(grad, indices, mode, validate_indices=False)
    good = (indices >= 0) & (indices < 6)
    state.check(after, grad[good], indices[good])


def test_without_validation_powers_advance_even_if_all_indices_are_ignored():
    state = AdamAsync("adam_async", (6, 5), tf.float64)
    grad = random_array(140, (2, 5), tf.float64)
    after = state.step(grad, np.array([-1, 6]), validate_indices=False)
    powers = {
        "beta1_power": state.values["beta1_power"] * 0.9,
        "beta2_power": state.values["beta2_power"] * 0.99,
    }
    assert_same_bits(after, {**state.values, **powers})


@each_kind
def test_ref_ops_return_the_variable_after_the_step(kind):
    state = AdamAsync("adam_async", (5, 3))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = state.make(use_resource=False)
        output = state.apply(variables, *gradient(kind, state))
        assert output.shape == [5, 3]
        assert output.dtype == tf.as_dtype("float32_ref")
        value = tf.identity(output)
        session.run(tf.compat.v1.global_variables_initializer())
        after = session.run(value)
        np.testing.assert_array_equal(after, session.run(variables["var"]))
        assert (after != state.values["var"]).any()


@each_kind
def test_resource_ops_return_an_operation(kind):
    state = AdamAsync("adam_async", (5, 3))
    with tf.Graph().as_default():
        op = state.apply(state.make(), *gradient(kind, state))
        assert isinstance(op, tf.Operation)
        assert op.outputs == []


ROUNDED = {
    "dense": adam_async_ops.resource_apply_adam_async_rounded,
    "sparse": adam_async_ops.resource_sparse_apply_adam_async_rounded,
}


@each_kind
def test_ops_that_round_take_a_count_and_move_slots_as_others_do(kind):
    """So the ops with DeepRec's names keep DeepRec's inputs."""
    state = AdamAsync("adam_async", (6, 4), tf.bfloat16)
    grad, indices = gradient(kind, state)
    with tf.device("CPU:0"):
        count = tf.Variable([0], dtype=tf.int64)
        variables = [tf.Variable(x) for x in state.values.values()]
    numbers = [tf.constant(state.numbers[name]) for name in state.NAMES]
    ROUNDED[kind](
        *[x.handle for x in variables],
        *(*numbers, grad, *([] if indices is None else [indices])),
        **rounding_inputs(tfs.ops.StochasticRounding(count)),
    )
    assert count.numpy() == [-1]
    expected = state.expected(grad, indices)
    for name, slot in zip(state.slots, variables[1:], strict=True):
        np.testing.assert_allclose(slot, expected[name], 5e-6, 5e-6, err_msg=name)


def test_a_step_is_taken_on_the_device_of_the_test(device):
    state = AdamAsync("adam_async", (5,))
    variables = state.make()
    for x in variables.values():
        assert tf.DeviceSpec.from_string(x.device).device_type == device
    grad = random_array(110, (5,), tf.float32)
    state.apply(variables, grad)
    state.check({name: x.numpy() for name, x in variables.items()}, grad)
