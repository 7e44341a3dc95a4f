"""Hyper-parameters of AdamAsyncOptimizer: kinds, values at each step, and errors."""

import adam_async_reference as reference
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

tf1 = tf.compat.v1

VALUES = {"learning_rate": 0.05, "beta1": 0.75, "beta2": 0.875, "epsilon": 0.125}

# How each kind is made from a number, inside the graph that uses it.
KINDS = {
    "float": lambda x: x,
    "numpy": np.float32,
    "tensor": tf.constant,
    "float64_tensor": lambda x: tf.constant(x, tf.float64),
    "placeholder": lambda x: tf1.placeholder_with_default(x, []),
    "unknown_shape": lambda x: tf1.placeholder_with_default(x, None),
    "callable": lambda x: lambda: x,
    "callable_tensor": lambda x: lambda: tf.constant(x),
    "ref_variable": lambda x: tf1.Variable(x, use_resource=False, trainable=False),
    "variable": lambda x: tf1.Variable(x, use_resource=True, trainable=False),
    "callable_variable": lambda x: (lambda variable: lambda: variable)(
        tf1.Variable(x, use_resource=True, trainable=False)
    ),
}
GRAPH_KINDS = ("placeholder", "unknown_shape", "ref_variable")

START = np.array([1.0, -2.0])
GRADS = ([0.5, 1.0], [-0.25, 2.0])
eagerly_and_in_a_function = pytest.mark.parametrize(
    "wrap", [lambda x: x, tf.function], ids=["eager", "function"]
)


def expected():
    state = reference.initial_state(START, VALUES["beta1"], VALUES["beta2"])
    for grad in GRADS:
        state = reference.adam_async_dense(*state, *VALUES.values(), grad)
    return state


@pytest.mark.parametrize(
    ("dtype", "use_resource"), [(tf.float32, False), (tf.float64, True)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_works_in_a_graph(kind, dtype, use_resource):
    with tf.Graph().as_default(), tf1.Session() as session:
        # This is the case of a worker: the variable and its slots are on another task.
        x = tf1.get_variable(
            "x", initializer=tf.constant(START, dtype), use_resource=use_resource
        )
        arguments = {name: KINDS[kind](value) for name, value in VALUES.items()}
        optimizer = tfs.train.AdamAsyncOptimizer(**arguments)
        grad = tf1.placeholder(dtype, [2])
        train_op = optimizer.apply_gradients([(grad, x)])
        session.run(tf1.global_variables_initializer())
        for value in GRADS:
            session.run(train_op, {grad: value})
        # All values but the learning rate are exact in float32.
        np.testing.assert_allclose(session.run(x), expected().var, rtol=1e-6)
        power = session.run(optimizer.get_slot(x, "beta1_power"))
        assert power == VALUES["beta1"] ** 3


@pytest.mark.eager
@pytest.mark.usefixtures("on_device")
@eagerly_and_in_a_function
@pytest.mark.parametrize("kind", [x for x in KINDS if x not in GRAPH_KINDS])
def test_every_kind_works_eagerly(kind, wrap):
    x = tf.Variable(START, dtype=tf.float32)
    arguments = {name: KINDS[kind](value) for name, value in VALUES.items()}
    optimizer = tfs.train.AdamAsyncOptimizer(**arguments)

    @wrap
    def update(grad):
        optimizer.apply_gradients([(grad, x)])

    for grad in GRADS:
        update(tf.constant(grad))
    np.testing.assert_allclose(x, expected().var, rtol=1e-6)


@pytest.mark.eager
def test_numbers_keep_their_precision_for_float64_variables():
    x = tf.Variable(START, dtype=tf.float64)
    optimizer = tfs.train.AdamAsyncOptimizer(**VALUES)
    for grad in GRADS:
        optimizer.apply_gradients([(tf.constant(grad, tf.float64), x)])
    np.testing.assert_allclose(x, expected().var, rtol=1e-14)


@pytest.mark.eager
@pytest.mark.usefixtures("on_device")
@eagerly_and_in_a_function
def test_an_assigned_learning_rate_counts_from_the_next_step(wrap):
    x = tf.Variable([0.0])
    rate = tf.Variable(1.0)
    optimizer = tfs.train.AdamAsyncOptimizer(rate, epsilon=0.0)

    @wrap
    def update():
        optimizer.apply_gradients([(tf.ones([1]), x)])

    for next_rate, total in ((0.5, 1.0), (0.25, 1.5), (0.0, 1.75)):
        update()
        np.testing.assert_allclose(x, [-total], rtol=1e-5)
        rate.assign(next_rate)


def test_a_callable_is_called_once_for_a_step():
    calls = []

    def rate():
        calls.append(None)
        return 0.1

    variables = [tf.Variable([0.0]), tf.Variable([1.0])]
    optimizer = tfs.train.AdamAsyncOptimizer(rate)
    for step in range(3):
        optimizer.apply_gradients([(tf.ones([1]), x) for x in variables])
        assert len(calls) == step + 1


@pytest.mark.eager
def test_numbers_at_the_edges_are_taken():
    x = tf.Variable([1.0])
    optimizer = tfs.train.AdamAsyncOptimizer(0, beta1=0, beta2=0, epsilon=0)
    optimizer.apply_gradients([(tf.ones([1]), x)])
    np.testing.assert_array_equal(x, [1.0])


@pytest.mark.parametrize("name", VALUES)
def test_tensors_must_be_scalars(name):
    for value in (tf.ones([2]), tf.Variable([1.0])):
        message = f"{name} must be a scalar. Received: {name} of shape {value.shape}"
        with pytest.raises(ValueError, match="must be a scalar") as caught:
            tfs.train.AdamAsyncOptimizer(**{name: value})
        assert str(caught.value) == message


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1]], ids=repr)
@pytest.mark.parametrize("name", VALUES)
def test_other_types_are_refused(name, value):
    with pytest.raises(TypeError) as caught:
        tfs.train.AdamAsyncOptimizer(**{name: value})
    assert str(caught.value) == (
        f"{name} must be a number, a scalar tensor, a variable, or a callable without "
        f"arguments that returns one of these. Received: {name}={value!r}"
    )


def test_rmsprop_momentum_must_be_a_number():
    with pytest.raises(ValueError, match=r"`rmsprop_momentum` must be a number\. Rec"):
        tfs.train.AdamAsyncOptimizer(rmsprop_momentum=lambda: 0.5)


def test_what_a_callable_returns_is_checked_when_it_is_called():
    x = tf.Variable([1.0])
    optimizer = tfs.train.AdamAsyncOptimizer(beta2=lambda: 1.5)
    with pytest.raises(ValueError, match=r"`beta2` must be in the range \[0, 1\)\. R"):
        optimizer.apply_gradients([(tf.ones([1]), x)])


@pytest.mark.eager
def test_a_beta_that_lives_inside_of_a_function_only_is_refused():
    x = tf.Variable([1.0])

    @tf.function
    def update(beta1):
        optimizer = tfs.train.AdamAsyncOptimizer(beta1=beta1)
        optimizer.apply_gradients([(tf.ones([1]), x)])

    with pytest.raises(ValueError, match="beta1 must be a number, a variable or a"):
        update(tf.constant(0.5))
