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

# How updates run. "stand_in" uses TensorFlow's own ops outside XLA, as on devices
# without kernels.
RUNS = ("eager", "function", "xla", "stand_in")
DENSE_FORMULAS = {"adam": {}, "nesterov": {"use_nesterov": True}}
SPARSE_FORMULAS = {
    **DENSE_FORMULAS,
    "rmsprop": {"apply_sparse_rmsprop": True},
    "rmsprop_without_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.0},
    "rmsprop_with_momentum": {"apply_sparse_rmsprop": True, "rmsprop_momentum": 0.5},
}
# The rounding of the variable dominates, except for float32 with sums and squares.
TOLERANCES = {tf.float16: 1e-3, tf.bfloat16: 8e-3, tf.float32: 5e-6, tf.float64: 1e-12}

each_run = pytest.mark.parametrize("run", RUNS)
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda x: x.name)


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


@each_run
@each_dtype
@pytest.mark.parametrize("formula", DENSE_FORMULAS)
def test_dense_steps_agree_with_the_twin(run, dtype, formula, stand_in):
    options = DENSE_FORMULAS[formula]
    gradients = [gradient(step, dtype) for step in range(STEPS)]
    state, iterations = train(run, dtype, gradients, **options)
    expected = train_twin(dtype, gradients, **options)
    keras_variants.assert_states_close(state, expected, TOLERANCES[dtype])
    assert iterations == STEPS


@each_run
@pytest.mark.parametrize(
    ("formula", "dtype", "index_dtype"),
    [
        *((formula, tf.float32, np.int64) for formula in SPARSE_FORMULAS),
        *(("rmsprop_with_momentum", dtype, np.int32) for dtype in TOLERANCES),
    ],
)
def test_sparse_steps_agree_with_the_twin(run, dtype, formula, index_dtype, stand_in):
    options = SPARSE_FORMULAS[formula]
    gradients = [gradient(step, dtype, index_dtype) for step in range(STEPS)]
    state, iterations = train(run, dtype, gradients, **options)
    expected = train_twin(dtype, gradients, **options)
    keras_variants.assert_states_close(state, expected, TOLERANCES[dtype])
    assert iterations == STEPS


@each_run
def test_untouched_rows_keep_every_bit(run, stand_in):
    gradients = [gradient(step, tf.float32, np.int64) for step in range(STEPS)]
    state, _ = train(run, tf.float32, gradients)
    np.testing.assert_array_equal(state.var[0], start_value(tf.float32)[0])
    np.testing.assert_array_equal(state.m[0], np.zeros(DIM))
    np.testing.assert_array_equal(state.v[0], np.zeros(DIM))


@each_run
def test_powers_stay_when_there_are_no_indices(run, stand_in):
    empty = gradient(2, tf.float64, np.int64)
    assert len(empty[1]) == 0
    state, iterations = train(run, tf.float64, [empty])
    assert (state.beta1_power, state.beta2_power) == tuple(BETAS.values())
    assert iterations == 1


@each_dtype
def test_slots_are_float64_for_float64_and_float32_otherwise(dtype):
    state, _ = train("eager", dtype, [])
    slot_dtype = np.float64 if dtype == tf.float64 else np.float32
    assert [x.dtype for x in state[1:]] == [slot_dtype] * 4
    assert [x.shape for x in state[1:]] == [(ROWS, DIM), (ROWS, DIM), (1,), (1,)]


def test_a_hundred_dense_steps_are_those_of_stock_adam():
    ours, theirs = tf.Variable(tf.ones([50])), tf.Variable(tf.ones([50]))
    optimizers = tfs.keras.AdamAsync(0.01), tf.keras.optimizers.Adam(0.01)

    @tf.function
    def step(gradient):
        for optimizer, variable in zip(optimizers, (ours, theirs), strict=True):
            optimizer.apply_gradients([(gradient, variable)])

    for optimizer, variable in zip(optimizers, (ours, theirs), strict=True):
        optimizer.build([variable])
    random = np.random.default_rng(0)
    for _ in range(100):
        step(tf.constant(random.normal(size=50), tf.float32))
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


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
