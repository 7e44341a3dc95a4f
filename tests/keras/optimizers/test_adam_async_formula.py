"""AdamAsync.apply_gradients against the float64 twin."""

import adam_async_reference as reference
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from keras_variants import LEARNING_RATE

import tf_syncrep as tfs
from tf_syncrep.python.keras import compat

BETAS = {"beta_1": 0.8, "beta_2": 0.95}
EPSILON = 1e-6
ROWS, DIM, STEPS = 7, 3, 5

# How updates run, and in which dtype; the ops' tests have all dtypes. "stand_in" uses
# TensorFlow's own ops outside XLA, as on devices without kernels.
RUNS = {
    "eager": tf.float64,
    "function": tf.float16,
    "xla": tf.float32,
    "stand_in": tf.bfloat16,
}
DENSE_FORMULAS = {"adam": {}, "nesterov": {"use_nesterov": True}}
SPARSE_FORMULAS = {
    **DENSE_FORMULAS,
    "rmsprop": {"apply_sparse_rmsprop": True},
    "rmsprop_without_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.0},
    "rmsprop_with_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.5},
}
# The rounding of the variable dominates, except for float32 with sums and squares.
TOLERANCES = {tf.float16: 1e-3, tf.bfloat16: 8e-3, tf.float32: 5e-6, tf.float64: 1e-12}


@pytest.fixture
def stand_in(run, monkeypatch):
    if run == "stand_in":
        monkeypatch.setattr(compat, "compiled_by_xla", lambda: True)


def start_value(dtype):
    value = np.random.default_rng(0).normal(size=(ROWS, DIM))
    return value.astype(dtype.as_numpy_dtype)


def gradient(step, dtype, index_dtype=None):
    """The gradient of one step, with indices if these have a dtype.

    Some indices are repeated, row 0 is never touched, and the third step is empty.
    """
    random = np.random.default_rng(step + 1)
    indices = random.integers(1, ROWS, 0 if step == 2 else 9)
    shape = (ROWS if index_dtype is None else len(indices), DIM)
    # All have one sign, so that sums of duplicates do not cancel.
    values = random.uniform(0.25, 2.0, shape).astype(dtype.as_numpy_dtype)
    return values, None if index_dtype is None else indices.astype(index_dtype)


def train(run, dtype, gradients, **options):
    """Returns the state after these gradients, and the optimizer's number of steps."""
    variable = tf.Variable(start_value(dtype))
    optimizer = tfs.keras.AdamAsync(LEARNING_RATE, **BETAS, epsilon=EPSILON, **options)
    optimizer.build([variable])

    def step(values, indices):
        if indices is not None:
            values = tf.IndexedSlices(values, indices, variable.shape)
        optimizer.apply_gradients([(values, variable)])

    if run in ("function", "xla"):
        step = tf.function(step, jit_compile=run == "xla")
    for values, indices in gradients:
        step(tf.constant(values), None if indices is None else tf.constant(indices))
    state = keras_variants.state_of(optimizer, variable)
    return state, int(optimizer.iterations)


def train_twin(dtype, gradients, **options):
    """The same by the twin, with the variable rounded as its dtype requires."""
    state = reference.initial_state(start_value(dtype), *BETAS.values())
    for values, indices in gradients:
        arguments = (*state, LEARNING_RATE, *BETAS.values(), EPSILON, values)
        if indices is None:
            state = reference.adam_async_dense(*arguments, **options)
        else:
            state = reference.adam_async_sparse(*arguments, indices, **options)
        rounded = state.var.astype(dtype.as_numpy_dtype).astype(np.float64)
        state = state._replace(var=rounded)
    return state


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("index_dtype", "formula"),
    [
        *((None, formula) for formula in DENSE_FORMULAS),
        *((np.int64, formula) for formula in SPARSE_FORMULAS),
        (np.int32, "rmsprop_with_momentum"),
    ],
)
def test_steps_agree_with_the_twin(run, index_dtype, formula, stand_in):
    dtype, options = RUNS[run], SPARSE_FORMULAS[formula]
    gradients = [gradient(step, dtype, index_dtype) for step in range(STEPS)]
    state, iterations = train(run, dtype, gradients, **options)
    expected = train_twin(dtype, gradients, **options)
    keras_variants.assert_states_close(state, expected, TOLERANCES[dtype])
    assert iterations == STEPS
    slot_dtype = np.float64 if dtype == tf.float64 else np.float32
    assert [x.dtype for x in state[1:]] == [slot_dtype] * 4
    assert [x.shape for x in state[1:]] == [(ROWS, DIM), (ROWS, DIM), (1,), (1,)]
    if index_dtype is not None:  # The row that is not touched keeps every bit.
        np.testing.assert_array_equal(state.var[0], start_value(dtype)[0])
        np.testing.assert_array_equal([state.m[0], state.v[0]], np.zeros([2, DIM]))


def test_gradients_of_another_dtype_are_cast():
    variable = tf.Variable(tf.ones([2], tf.float32))
    optimizer = tfs.keras.AdamAsync(LEARNING_RATE)
    optimizer.apply_gradients([(tf.ones([2], tf.float64), variable)])
    np.testing.assert_allclose(variable.numpy(), 1 - LEARNING_RATE, rtol=1e-5)


def test_index_out_of_range_is_an_error_and_changes_nothing():
    variable = tf.Variable(tf.ones([3, 2]))
    optimizer = tfs.keras.AdamAsync(LEARNING_RATE)
    optimizer.build([variable])
    bad = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([0, 3]), tf.constant([3, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        optimizer.apply_gradients([(bad, variable)])
    state = keras_variants.state_of(optimizer, variable)
    np.testing.assert_array_equal(state.var, np.ones([3, 2]))
    np.testing.assert_array_equal(state.v, np.zeros([3, 2]))
    assert state.beta1_power == np.float32(0.9)
