"""Sparse AdamAsync steps against the float64 twin."""

import adam_async_steps as steps
import numpy as np
import pytest
import tensorflow as tf
from combinations import first_in_full

pytestmark = pytest.mark.usefixtures("device")

FORMULAS = {
    "adam": {},
    "nesterov": {"use_nesterov": True},
    "rmsprop": {"apply_sparse_rmsprop": True},
    "rmsprop_without_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.0},
    "rmsprop_with_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.5},
}
INDEX_DTYPES = (np.int32, np.int64)

each_mode = pytest.mark.parametrize("mode", steps.MODES)
each_formula = pytest.mark.parametrize("formula", FORMULAS)
each_dtype = pytest.mark.parametrize("dtype", steps.DTYPES, ids=lambda x: x.name)
each_index_dtype = pytest.mark.parametrize(
    "index_dtype", INDEX_DTYPES, ids=lambda x: x.__name__
)


def row_gradients(seed, indices, row_shape, dtype):
    """Gradients of one sign, so that sums of duplicates do not cancel."""
    shape = [len(indices), *row_shape]
    return np.abs(steps.random_array(seed, shape, dtype))


@first_in_full(
    "mode, dtype, formula, index_dtype",
    steps.MODES,
    steps.DTYPES,
    FORMULAS,
    INDEX_DTYPES,
)
def test_sparse_step_agrees_with_the_twin(mode, dtype, formula, index_dtype):
    state = steps.random_state(1, [6, 5], dtype)
    indices = np.array([4, 1, 4, 0, 4, 1], index_dtype)
    grad = row_gradients(10, indices, [5], dtype)
    actual = steps.step(mode, state, grad, indices, **FORMULAS[formula])
    steps.assert_close(
        actual, steps.expected_step(state, grad, indices, **FORMULAS[formula])
    )
    assert [array.dtype for array in actual] == [array.dtype for array in state]
    for before, after in zip(state[:3], actual[:3], strict=True):
        np.testing.assert_array_equal(before[[2, 3, 5]], after[[2, 3, 5]])


@first_in_full(
    "dtype, row_shape, formula",
    sorted(steps.DTYPES, key=lambda dtype: dtype != tf.float32),
    [[], [1], [3], [7], [17], [64], [65], [3, 5]],
    FORMULAS,
)
def test_rows_of_any_shape_are_updated_as_wholes(row_shape, dtype, formula):
    state = steps.random_state(2, [9, *row_shape], dtype)
    indices = np.array([8, 0, 3, 3, 8], np.int64)
    grad = row_gradients(20, indices, row_shape, dtype)
    actual = steps.step("eager", state, grad, indices, **FORMULAS[formula])
    steps.assert_close(
        actual, steps.expected_step(state, grad, indices, **FORMULAS[formula])
    )


@each_formula
@each_dtype
def test_many_rows_with_many_duplicates_agree_with_the_twin(dtype, formula):
    """Enough rows for several threads; about every fourth place has index 0."""
    rows = 3000
    state = steps.random_state(3, [rows, 9], dtype)
    indices = (np.random.default_rng(30).zipf(1.3, size=5000) - 1) % rows
    # There are sums of hundreds of gradients; small ones keep half precision finite.
    grad = row_gradients(31, indices, [9], tf.float32) / 16
    grad = grad.astype(dtype.as_numpy_dtype)
    actual = steps.step("eager", state, grad, indices, **FORMULAS[formula])
    expected = steps.expected_step(state, grad, indices, **FORMULAS[formula])
    if dtype == tf.float64:
        steps.assert_close(actual, expected)
        return
    # A sum of a thousand floats has an error of its own.
    for got, want in zip(actual, expected, strict=True):
        tolerance = max(steps.RELATIVE_ERROR[tf.as_dtype(got.dtype)], 1e-4)
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=tolerance, atol=tolerance
        )


@each_index_dtype
@each_formula
@each_mode
def test_no_indices_change_nothing(mode, formula, index_dtype):
    state = steps.random_state(4, [5, 3], tf.float32)
    grad = np.zeros([0, 3], np.float32)
    actual = steps.step(
        mode, state, grad, np.zeros([0], index_dtype), **FORMULAS[formula]
    )
    steps.assert_identical(actual, state)


@each_index_dtype
@each_mode
def test_no_indices_are_a_step_where_they_are_to_be_counted(mode, index_dtype):
    state = steps.random_state(4, [5, 3], tf.float32)
    grad, indices = np.zeros([0, 3], np.float32), np.zeros([0], index_dtype)
    actual = steps.step(mode, state, grad, indices, count_empty=True)
    expected = steps.step(mode, state, np.zeros([5, 3], np.float32))
    assert actual.beta1_power == expected.beta1_power != state.beta1_power
    assert actual.beta2_power == expected.beta2_power != state.beta2_power
    for name in ("var", "m", "v"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(state, name))


@each_mode
def test_an_empty_variable_takes_an_empty_gradient(mode):
    state = steps.random_state(5, [0, 3], tf.float32)
    actual = steps.step(
        mode, state, np.zeros([0, 3], np.float32), np.zeros([0], np.int32)
    )
    steps.assert_identical(actual, state)


@each_mode
def test_rows_without_elements_only_advance_the_powers(mode):
    state = steps.random_state(6, [4, 0], tf.float32)
    indices = np.array([3, 0, 3], np.int32)
    actual = steps.step(mode, state, np.zeros([3, 0], np.float32), indices)
    np.testing.assert_allclose(actual.beta1_power, 0.9**6, rtol=1e-6)
    np.testing.assert_allclose(actual.beta2_power, 0.99**6, rtol=1e-6)


@each_formula
@each_mode
def test_a_variable_of_one_row_sums_all_gradients(mode, formula):
    state = steps.random_state(7, [1, 4], tf.float32)
    indices = np.zeros([5], np.int32)
    grad = row_gradients(70, indices, [4], tf.float32)
    actual = steps.step(mode, state, grad, indices, **FORMULAS[formula])
    steps.assert_close(
        actual, steps.expected_step(state, grad, indices, **FORMULAS[formula])
    )


@each_formula
@each_mode
def test_use_locking_changes_no_result(mode, formula):
    state = steps.random_state(11, [6, 5], tf.float32)
    indices = np.array([4, 1, 4, 0], np.int32)
    grad = row_gradients(110, indices, [5], tf.float32)
    options = FORMULAS[formula]
    steps.assert_identical(
        steps.step(mode, state, grad, indices, use_locking=True, **options),
        steps.step(mode, state, grad, indices, use_locking=False, **options),
    )


def test_half_gradients_are_summed_in_float():
    """In half, 2048 + 1 is 2048: a thousand further ones would be lost."""
    state = steps.random_state(12, [2, 1], tf.float16)
    state = state._replace(v=state.v * 0)
    grad = np.concatenate([[[2048.0]], np.ones([1000, 1])]).astype(np.float16)
    indices = np.ones([1001], np.int32)
    actual = steps.step("eager", state, grad, indices, beta2=0.0)
    np.testing.assert_allclose(np.sqrt(actual.v[1]), 3048.0, rtol=1e-6)


@each_formula
@each_mode
def test_without_validation_indices_that_are_no_rows_are_ignored(mode, formula):
    state = steps.random_state(13, [6, 5], tf.float32)
    indices = np.array([4, -1, 6, 0, 4, 2**31 - 1, -(2**31)], np.int32)
    grad = row_gradients(130, indices, [5], tf.float32)
    options = FORMULAS[formula]
    actual = steps.step(mode, state, grad, indices, validate_indices=False, **options)
    good = (indices >= 0) & (indices < 6)
    steps.assert_close(
        actual, steps.expected_step(state, grad[good], indices[good], **options)
    )


def test_without_validation_powers_advance_even_if_all_indices_are_ignored():
    state = steps.random_state(14, [6, 5], tf.float64)
    grad = row_gradients(140, [0, 0], [5], tf.float64)
    actual = steps.step("eager", state, grad, np.array([-1, 6]), validate_indices=False)
    assert actual.beta1_power == state.beta1_power * 0.9
    assert actual.beta2_power == state.beta2_power * 0.99
    powers = {"beta1_power": actual.beta1_power, "beta2_power": actual.beta2_power}
    steps.assert_identical(actual, state._replace(**powers))
