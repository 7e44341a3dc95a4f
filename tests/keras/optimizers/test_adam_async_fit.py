"""Model.fit with AdamAsync: default arguments, XLA."""

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

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
