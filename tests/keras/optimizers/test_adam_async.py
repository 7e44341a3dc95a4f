"""AdamAsync: its formula, what its base class promises, and XLA."""

import adam_async_reference as reference
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from keras_variants import LEARNING_RATE
from same import assert_same

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


def state_after(run, dtype, gradients, **options):
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
    state, iterations = state_after(run, dtype, gradients, **options)
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


keras_3_only = pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="an argument of Keras 3"
)

MANY, WIDTH = 100, 4


def gradients(step=0):
    """A sparse gradient of a table, which names a row twice, and one of a vector."""
    random = np.random.default_rng(step)
    values = tf.constant(random.normal(size=(3, WIDTH)), tf.float32)
    rows = tf.constant(random.choice(MANY, 2, replace=False)[[0, 1, 0]])
    vector = tf.constant(random.normal(size=WIDTH), tf.float32)
    return tf.IndexedSlices(values, rows, tf.constant([MANY, WIDTH])), vector


def scaled(gradient, scale):
    """Multiplies a gradient of either kind."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * scale
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * scale


def make_variables():
    return [tf.Variable(tf.ones([MANY, WIDTH])), tf.Variable(tf.ones([WIDTH]))]


def train(steps_of_gradients, **options):
    """Returns table and vector after these steps, and the optimizer."""
    variables = make_variables()
    optimizer = tfs.keras.AdamAsync(**{"learning_rate": LEARNING_RATE, **options})
    optimizer.build(variables)

    @tf.function
    def step(*grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    for grads in steps_of_gradients:
        step(*grads)
    return [x.numpy() for x in variables], optimizer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clipnorm": 0.5},
        {"clipvalue": 0.5},
        {"global_clipnorm": 0.5},
        {"apply_sparse_rmsprop": True},
        {"use_nesterov": True},
        {"weight_decay": 0.0},
        pytest.param({"loss_scale_factor": 8.0}, marks=keras_3_only),
    ],
    ids=str,
)
def test_a_sparse_step_makes_nothing_of_the_tables_size(options):
    variables = make_variables()
    optimizer = tfs.keras.AdamAsync(**options)
    optimizer.build(variables)

    @tf.function
    def step():
        optimizer.apply_gradients(zip(gradients(), variables, strict=True))

    operations = step.get_concrete_function().graph.get_operations()
    assert len(operations) > 5
    large = [
        (operation.type, output.shape)
        for operation in operations
        for output in operation.outputs
        if output.shape.rank and (output.shape[0] or 0) >= MANY
    ]
    assert large == []


@keras_3_only
def test_learning_rate_can_be_a_callable():
    variable = tf.Variable([8.0])
    optimizer = tfs.keras.AdamAsync(lambda: 0.5)
    optimizer.apply_gradients([(tf.constant([3.0]), variable)])
    np.testing.assert_allclose(variable.numpy(), [7.5], rtol=1e-5)


@keras_3_only
@pytest.mark.parametrize("sparse", [False, True])
def test_loss_scale_factor_is_taken_out_of_the_gradients(sparse):
    table_gradient, vector_gradient = gradients()
    if not sparse:
        table_gradient = tf.convert_to_tensor(table_gradient)
    grads = (table_gradient, vector_gradient)
    actual, optimizer = train(
        [[scaled(g, 8.0) for g in grads]], loss_scale_factor=8.0, clipvalue=0.5
    )
    expected, _ = train([grads], clipvalue=0.5)
    assert_same(actual, expected, 1e-6)
    assert float(optimizer.scale_loss(3.0)) == 24.0


def test_loss_scale_optimizer_skips_steps_that_are_not_finite():
    variables = make_variables()
    inner = tfs.keras.AdamAsync(LEARNING_RATE)
    loss_scaling = tf.keras.mixed_precision.LossScaleOptimizer
    optimizer = loss_scaling(inner, initial_scale=8.0)
    optimizer.build(variables)

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            picked = tf.gather(variables[0], [1, 2, 1])
            loss = factor * (tf.reduce_sum(picked) + tf.reduce_sum(variables[1]))
            if keras_variants.IS_KERAS_3:
                loss = optimizer.scale_loss(loss)
            else:
                loss = optimizer.get_scaled_loss(loss)
        grads = tape.gradient(loss, variables)
        if not keras_variants.IS_KERAS_3:
            grads = optimizer.get_unscaled_gradients(grads)
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    step(tf.constant(1.0))
    before = [keras_variants.state_of(inner, x) for x in variables]
    assert before[0].var[1, 0] == pytest.approx(1 - LEARNING_RATE, rel=1e-5)
    # Two equal rows of gradient 1: their sum, unscaled.
    assert before[0].m[1, 0] == pytest.approx(0.2, rel=1e-5)
    step(tf.constant(np.inf, tf.float32))
    after = [keras_variants.state_of(inner, x) for x in variables]
    for state, state_before in zip(after, before, strict=True):
        assert_same(state, state_before)
    # The LossScaleOptimizer of Keras 2 counts skipped steps itself.
    assert inner.iterations.numpy() == (1 if keras_variants.IS_KERAS_3 else 2)


@keras_3_only
def test_gradient_accumulation_updates_with_the_mean():
    batches = [gradients(step) for step in range(2)]
    actual, optimizer = train(batches, gradient_accumulation_steps=2)
    dense = [[tf.convert_to_tensor(g) for g in batch] for batch in batches]
    mean = [(a + b) / 2 for a, b in zip(*dense, strict=True)]
    expected, _ = train([mean])
    assert_same(actual, expected, 1e-6)
    assert int(optimizer.iterations) == 1


# Values of `jit_compile` in `compile`; None stands for no argument.
JIT_CHOICES = (None, True, "auto") if keras_variants.IS_KERAS_3 else (None, True)


def fit(optimizer, epochs=3, **compile_options):
    model = keras_variants.small_model()
    model.compile(optimizer=optimizer, loss="mse", **compile_options)
    words, targets = keras_variants.small_data()
    history = model.fit(
        words, targets, batch_size=16, epochs=epochs, shuffle=False, verbose=0
    )
    return model, history.history["loss"]


def op_types(function, *arguments):
    """The types of all ops that a call of a tf.function would run."""
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node]
    for inner in graph.library.function:
        nodes += inner.node_def
    return {node.op for node in nodes}


@pytest.mark.parametrize("jit_compile", JIT_CHOICES)
def test_training_is_the_same_whatever_is_said_of_xla(jit_compile):
    options = {} if jit_compile is None else {"jit_compile": jit_compile}
    model, losses = fit(tfs.keras.AdamAsync(0.05), **options)
    assert isinstance(model.optimizer, tfs.keras.AdamAsync)
    assert model.optimizer.iterations.numpy() == 12
    _, without = fit(tfs.keras.AdamAsync(0.05), jit_compile=False)
    np.testing.assert_allclose(losses, without, rtol=1e-4)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_own_ops_are_used_exactly_where_xla_does_not_compile(jit_compile):
    table, bias = tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([2]))
    optimizer = tfs.keras.AdamAsync()
    optimizer.build([table, bias])

    @tf.function(jit_compile=jit_compile)
    def step(rows):
        keras_variants.update(
            optimizer,
            [table, bias],
            lambda: tf.reduce_sum(tf.gather(table, rows) * bias),
        )

    own = {"ResourceApplyAdamAsync", "ResourceSparseApplyAdamAsync"}
    assert op_types(step, tf.constant([1, 1])) & own == (set() if jit_compile else own)


def test_a_function_called_from_one_under_xla_is_compiled_too():
    variable = tf.Variable(tf.ones([2]))
    optimizer = tfs.keras.AdamAsync(0.5)
    optimizer.build([variable])

    @tf.function
    def inner():
        optimizer.apply_gradients([(tf.ones([2]), variable)])

    tf.function(inner, jit_compile=True)()
    np.testing.assert_allclose(variable.numpy(), 0.5, rtol=1e-5)


def test_minimize_in_the_way_of_keras_2_works_where_it_exists():
    optimizer = tfs.keras.AdamAsync(0.5)
    if not hasattr(optimizer, "minimize"):
        pytest.skip("optimizers of Keras 3 have no minimize")
    variable = tf.Variable([1.0, 1.0])
    optimizer.minimize(lambda: tf.reduce_sum(variable), [variable])
    np.testing.assert_allclose(variable.numpy(), 0.5, rtol=1e-5)
