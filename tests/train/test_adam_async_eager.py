"""AdamAsyncOptimizer without a graph: eagerly, in tf.function, under strategies."""

import functools
import pathlib

import adam_async_reference as reference
import numpy as np
import programs
import pytest
import tensorflow as tf
import v1_models

import tf_syncrep as tfs

pytestmark = pytest.mark.eager

OPTIONS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}
STEPS = 4

STRATEGIES_PROGRAM = pathlib.Path(__file__).with_name("strategies_program.py")


def expected():
    """Table and vector after STEPS steps, by the twin."""
    table = reference.initial_state(v1_models.TABLE, 0.8, 0.95)
    vector = reference.initial_state(v1_models.VECTOR, 0.8, 0.95)
    for step in range(STEPS):
        rows, row_grads, vector_grad = v1_models.gradients(step)
        table = reference.adam_async_sparse(
            *table, lr=0.05, **OPTIONS, grad=row_grads, indices=rows
        )
        vector = reference.adam_async_dense(
            *vector, lr=0.05, **OPTIONS, grad=vector_grad
        )
    return table.var, vector.var


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_minimize_of_a_loss_function_agrees_with_the_twin(in_function):
    table = tf.Variable(v1_models.TABLE, dtype=tf.float32)
    vector = tf.Variable(v1_models.VECTOR, dtype=tf.float32)
    optimizer = tfs.train.AdamAsyncOptimizer(0.05, **OPTIONS)

    def train(rows, row_grads, vector_grad):
        def loss():
            found = tf.nn.embedding_lookup(table, rows)
            return tf.reduce_sum(found * row_grads) + tf.reduce_sum(
                vector * vector_grad
            )

        optimizer.minimize(loss, var_list=[table, vector])

    if in_function:
        train = tf.function(train)
    for step in range(STEPS):
        rows, row_grads, vector_grad = v1_models.gradients(step)
        train(
            tf.constant(rows),
            tf.constant(row_grads, tf.float32),
            tf.constant(vector_grad, tf.float32),
        )
    for actual, want in zip((table, vector), expected(), strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-5, atol=1e-6)


def test_one_optimizer_serves_eager_code_and_functions():
    x = tf.Variable([1.0, 2.0])
    optimizer = tfs.train.AdamAsyncOptimizer(0.1, epsilon=0.0)
    traces = []

    @tf.function
    def train(grad):
        traces.append(None)
        optimizer.apply_gradients([(grad, x)])

    train(tf.ones([2]))
    first = len(traces)
    optimizer.apply_gradients([(tf.ones([2]), x)])
    train(tf.ones([2]))
    # Later steps are not traced again.
    assert len(traces) == first
    assert len(optimizer.variables()) == 4
    np.testing.assert_allclose(x, [0.7, 1.7], rtol=1e-5)
    power = optimizer.get_slot(x, "beta1_power")
    np.testing.assert_allclose(power, 0.9**4, rtol=1e-6)


@functools.cache
def under_strategy(name, device):
    """The variables of two replicas of one process."""
    return programs.run(STRATEGIES_PROGRAM, name, device)


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_two_replicas_agree_with_the_twin_and_with_each_other(strategy, device):
    training = under_strategy(strategy, device)
    for value, want in zip(training["values"], expected(), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)
    # Two variables and four slots of each.
    assert len(training["copies"]) == 10
    for first, *others in training["copies"]:
        assert len(others) == (strategy == "mirrored")
        assert all(other == first for other in others)


def test_variables_synchronized_on_reading_are_each_replicas_own_to_the_op(device):
    training = under_strategy("mirrored", device)
    wanted = []
    for replica in range(2):
        state = reference.initial_state(v1_models.VECTOR, 0.8, 0.95)
        for step in range(STEPS):
            gradient = v1_models.gradients(step + 10 * replica)[2]
            state = reference.adam_async_dense(
                *state, lr=0.05, **OPTIONS, grad=gradient
            )
        wanted.append(state.var)
    assert not np.allclose(*wanted)
    for how, read in (("sum", np.sum), ("mean", np.mean)):
        np.testing.assert_allclose(training[how]["copies"], wanted, rtol=1e-5)
        np.testing.assert_allclose(
            training[how]["read"], read(wanted, axis=0), rtol=1e-5
        )


def test_sync_replicas_optimizer_says_eagerly_what_to_use_instead():
    optimizer = tfs.train.SyncReplicasOptimizer(
        tfs.train.AdamAsyncOptimizer(), replicas_to_aggregate=2
    )
    variable = tf.Variable(1.0)
    with pytest.raises(RuntimeError, match=r"tfs\.keras\.SyncReplicas.*eager mode"):
        optimizer.minimize(lambda: variable**2, tf.Variable(0, dtype=tf.int64))
