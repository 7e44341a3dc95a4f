"""Promises of the base class that test_optimizer_table.py does not cover."""

import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from keras_variants import LEARNING_RATE

import tf_syncrep as tfs

keras_3_only = pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="an argument of Keras 3"
)

ROWS, DIM = 100, 4


def gradients(step=0):
    """A sparse gradient of a table, which names a row twice, and one of a vector."""
    random = np.random.default_rng(step)
    values = tf.constant(random.normal(size=(3, DIM)), tf.float32)
    rows = tf.constant(random.choice(ROWS, 2, replace=False)[[0, 1, 0]])
    vector = tf.constant(random.normal(size=DIM), tf.float32)
    return tf.IndexedSlices(values, rows, tf.constant([ROWS, DIM])), vector


def scaled(gradient, scale):
    """Multiplies a gradient of either kind."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * scale
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * scale


def make_variables():
    return [tf.Variable(tf.ones([ROWS, DIM])), tf.Variable(tf.ones([DIM]))]


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


def operations_of_a_step(**options):
    variables = make_variables()
    optimizer = tfs.keras.AdamAsync(**options)
    optimizer.build(variables)

    @tf.function
    def step():
        optimizer.apply_gradients(zip(gradients(), variables, strict=True))

    return step.get_concrete_function().graph.get_operations()


def assert_all_close(actual, expected, tolerance=1e-6):
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clipnorm": 0.5},
        {"clipvalue": 0.5},
        {"global_clipnorm": 0.5},
        {"apply_sparse_rmsprop": True},
        {"use_nesterov": True},
        pytest.param({"loss_scale_factor": 8.0}, marks=keras_3_only),
    ],
    ids=str,
)
def test_a_sparse_step_makes_nothing_of_the_tables_size(options):
    operations = operations_of_a_step(**options)
    assert len(operations) > 5
    large = [
        (operation.type, output.shape)
        for operation in operations
        for output in operation.outputs
        if output.shape.rank and (output.shape[0] or 0) >= ROWS
    ]
    assert large == []


def test_learning_rate_can_be_set():
    variable = tf.Variable([8.0])
    optimizer = tfs.keras.AdamAsync(0.5)
    optimizer.apply_gradients([(tf.constant([3.0]), variable)])
    optimizer.learning_rate = 0.25
    optimizer.apply_gradients([(tf.constant([3.0]), variable)])
    np.testing.assert_allclose(variable.numpy(), [7.25], rtol=1e-5)


@keras_3_only
def test_learning_rate_can_be_a_callable():
    variable = tf.Variable([8.0])
    optimizer = tfs.keras.AdamAsync(lambda: 0.5)
    optimizer.apply_gradients([(tf.constant([3.0]), variable)])
    np.testing.assert_allclose(variable.numpy(), [7.5], rtol=1e-5)


def test_no_weight_decay_costs_nothing():
    operations = operations_of_a_step(weight_decay=0.0)
    assert not any("AssignSub" in operation.type for operation in operations)


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
    assert_all_close(actual, expected)
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
        for x, y in zip(state, state_before, strict=True):
            np.testing.assert_array_equal(x, y)
    # The LossScaleOptimizer of Keras 2 counts skipped steps itself.
    assert inner.iterations.numpy() == (1 if keras_variants.IS_KERAS_3 else 2)


@keras_3_only
def test_gradient_accumulation_updates_with_the_mean():
    batches = [gradients(step) for step in range(2)]
    actual, optimizer = train(batches, gradient_accumulation_steps=2)
    dense = [[tf.convert_to_tensor(g) for g in batch] for batch in batches]
    mean = [(a + b) / 2 for a, b in zip(*dense, strict=True)]
    expected, _ = train([mean])
    assert_all_close(actual, expected)
    assert int(optimizer.iterations) == 1
