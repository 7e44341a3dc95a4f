"""Dense AdamAsync steps against the float64 twin and against TensorFlow's Adam."""

import adam_async_steps as steps
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("use_nesterov", [False, True], ids=["adam", "nesterov"])
@pytest.mark.parametrize("dtype", steps.DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("mode", steps.MODES)
def test_dense_step_agrees_with_the_twin(mode, dtype, use_nesterov):
    state = steps.random_state(1, [5, 7], dtype)
    for seed in (10, 11):
        grad = steps.random_array(seed, [5, 7], dtype)
        actual = steps.step(mode, state, grad, use_nesterov=use_nesterov)
        steps.assert_close(
            actual, steps.expected_step(state, grad, use_nesterov=use_nesterov)
        )
        assert [array.dtype for array in actual] == [array.dtype for array in state]
        state = actual


@pytest.mark.parametrize("dtype", steps.DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "shape",
    # Scalars, sizes around those of vector registers, and a size for many threads.
    [[], [1], [1, 1], [3], [7], [17], [64], [65], [2, 3, 5], [1, 1, 1, 9], [321, 1013]],
    ids=str,
)
def test_every_element_is_updated_whatever_the_shape(shape, dtype):
    state = steps.random_state(2, shape, dtype)
    grad = steps.random_array(20, shape, dtype)
    steps.assert_close(
        steps.step("eager", state, grad), steps.expected_step(state, grad)
    )


@pytest.mark.parametrize("mode", steps.MODES)
@pytest.mark.parametrize("shape", [[0], [0, 4], [4, 0]], ids=str)
def test_an_empty_variable_only_advances_its_powers(mode, shape):
    state = steps.random_state(3, shape, tf.float32)
    actual = steps.step(mode, state, np.zeros(shape, np.float32))
    assert actual.var.shape == tuple(shape)
    np.testing.assert_allclose(actual.beta1_power, 0.9**6, rtol=1e-6)
    np.testing.assert_allclose(actual.beta2_power, 0.99**6, rtol=1e-6)


@pytest.mark.parametrize("power_shape", [(), (1,), (1, 1)], ids=str)
def test_powers_may_have_any_shape_of_one_element(power_shape):
    state = steps.random_state(4, [6], tf.float32)
    state = state._replace(
        beta1_power=state.beta1_power.reshape(power_shape),
        beta2_power=state.beta2_power.reshape(power_shape),
    )
    grad = steps.random_array(40, [6], tf.float32)
    actual = steps.step("eager", state, grad)
    steps.assert_close(actual, steps.expected_step(state, grad))
    assert actual.beta1_power.shape == power_shape


@pytest.mark.parametrize("use_nesterov", [False, True], ids=["adam", "nesterov"])
@pytest.mark.parametrize(
    "dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name
)
def test_a_hundred_steps_equal_those_of_resource_apply_adam(dtype, use_nesterov):
    shape = [13, 11]
    zeros = np.zeros(shape, dtype.as_numpy_dtype)
    start = steps.random_state(5, shape, dtype)._replace(m=zeros, v=zeros)
    powers = {"beta1_power": start.beta1_power * 0 + 0.9}
    powers["beta2_power"] = start.beta2_power * 0 + 0.99
    start = start._replace(
        **{name: power.astype(zeros.dtype) for name, power in powers.items()}
    )
    ours = steps.make_variables(start)
    var, m, v, beta1_power, beta2_power = steps.make_variables(start)
    scalars = {
        name: tf.constant(value, dtype)
        for name, value in steps.HYPER_PARAMETERS.items()
    }
    for seed in range(100):
        grad = steps.random_array(seed, shape, dtype)
        steps.apply(ours, grad, use_nesterov=use_nesterov)
        tf.raw_ops.ResourceApplyAdam(
            var=var.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            **scalars,
            grad=grad,
            use_nesterov=use_nesterov,
        )
        beta1_power.assign(beta1_power * scalars["beta1"])
        beta2_power.assign(beta2_power * scalars["beta2"])
    # Both round at each step, with operations in different orders.
    tolerance = 100 * np.finfo(zeros.dtype).eps
    for name, got, want in zip(
        start._fields,
        steps.values(ours),
        [x.numpy() for x in (var, m, v, beta1_power, beta2_power)],
        strict=True,
    ):
        np.testing.assert_allclose(
            got, want, rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("dtype", steps.DTYPES, ids=lambda dtype: dtype.name)
def test_a_zero_gradient_at_the_first_step_moves_nothing(dtype):
    """In half arithmetic epsilon 1e-8 is 0, and 0 / 0 would be NaN."""
    state = steps.random_state(6, [9], dtype)
    state = state._replace(m=state.m * 0, v=state.v * 0)
    actual = steps.step("eager", state, np.zeros_like(state.var))
    np.testing.assert_array_equal(actual.var, state.var)


def test_bfloat16_keeps_its_moving_averages_in_float():
    """In bfloat16 arithmetic 1 - 0.999 is 0, and v would stay at 0."""
    state = steps.random_state(7, [9], tf.bfloat16)
    state = state._replace(m=state.m * 0, v=state.v * 0)
    grad = steps.random_array(70, [9], tf.bfloat16)
    actual = steps.step("eager", state, grad, beta2=0.999)
    expected = 0.001 * np.square(grad.astype(np.float32))
    np.testing.assert_allclose(actual.v, expected, rtol=1e-4)


def test_a_large_second_moment_is_forgotten_without_cancellation():
    """The form v + (g * g - v) * (1 - beta2) ends at 0 here: a division by epsilon."""
    state = steps.random_state(8, [1000], tf.float32)
    state = state._replace(v=state.v * np.float32(1e30))
    grad = steps.random_array(80, [1000], tf.float32)
    actual = steps.step("eager", state, grad, beta2=0.0)
    np.testing.assert_array_equal(actual.v, np.square(grad))


def test_hyper_parameters_may_be_tensors_and_variables():
    state = steps.random_state(9, [5], tf.float32)
    grad = steps.random_array(90, [5], tf.float32)
    actual = steps.step(
        "eager", state, grad, lr=tf.Variable(0.25), beta1=tf.constant(0.5)
    )
    steps.assert_close(actual, steps.expected_step(state, grad, lr=0.25, beta1=0.5))


def test_numbers_keep_their_precision_for_float64_variables():
    state = steps.random_state(9, [5], tf.float64)
    grad = steps.random_array(90, [5], tf.float64)
    actual = steps.step("eager", state, grad, lr=0.1, beta1=0.7)
    steps.assert_close(actual, steps.expected_step(state, grad, lr=0.1, beta1=0.7))
    np.testing.assert_allclose(actual.beta1_power, 0.9**5 * 0.7, rtol=1e-15)


def test_a_step_is_taken_on_the_device_of_the_test(device):
    state = steps.random_state(11, [5], tf.float32)
    variables = steps.make_variables(state)
    assert {tf.DeviceSpec.from_string(x.device).device_type for x in variables} == {
        device
    }
    grad = steps.random_array(110, [5], tf.float32)
    steps.apply(variables, grad)
    steps.assert_close(steps.values(variables), steps.expected_step(state, grad))
