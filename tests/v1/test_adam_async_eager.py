"""AdamAsyncOptimizer without a graph: eagerly, in tf.function, under strategies."""

import functools
import pathlib

import numpy as np
import programs
import pytest
import tensorflow as tf
import v1_models
import v1_optimizers

import tf_syncrep as tfs

pytestmark = pytest.mark.eager

STEPS = 4
CASE = v1_optimizers.CASES["adam_async"]

STRATEGIES_PROGRAM = pathlib.Path(__file__).with_name("strategies_program.py")


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
    expected = v1_optimizers.by_twin(
        CASE, "resource", tf.float64, STEPS, lambda _: v1_optimizers.RATE
    )
    for value, name in zip(training["values"], ("table", "vector"), strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)
    # Two variables and four slots of each.
    assert len(training["copies"]) == 10
    for first, *others in training["copies"]:
        assert len(others) == (strategy == "mirrored")
        assert all(other == first for other in others)


def test_variables_synchronized_on_reading_are_each_replicas_own_to_the_op(device):
    training = under_strategy("mirrored", device)
    wanted = []
    for replica in range(2):
        state = CASE.start(v1_models.VECTOR)
        for step in range(STEPS):
            gradient = v1_models.gradients(step + 10 * replica)[2]
            state = CASE.apply(state, gradient)
        wanted.append(state[0])
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
