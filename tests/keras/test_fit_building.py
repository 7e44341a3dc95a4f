"""`fit` makes missing parts of a model by tracing a step."""

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from counter_layer import Counter

from tf_syncrep.python.keras.fit.building import build

layers = tf.keras.layers
NUMBERS = tf.constant([[1.0, 2.0, 3.0]])


class Net(tf.keras.Model):
    """Only its step knows that the layers in sequence take three numbers."""

    def __init__(self):
        super().__init__()
        self.scale = layers.Normalization(mean=[0.5] * 3, variance=[4.0] * 3)
        self.batch = layers.BatchNormalization()
        self.dense = layers.Dense(1, kernel_initializer="ones")
        self.seen = tf.keras.metrics.Mean(name="seen")

    def train_step(self, data: Any):
        with tf.GradientTape() as tape:
            x = self.batch(self.scale(data["x"]), training=True)
            loss = tf.reduce_mean(self.dense(x))
        variables = self.dense.trainable_variables
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        self.optimizer.apply_gradients(pairs)
        self.seen.update_state(loss)
        return {"loss": loss}


class Function(Net):
    @tf.function
    def train_step(self, data: Any):
        if tf.reduce_sum(data["x"]) > 0.0:  # by AutoGraph
            data = {"x": data["x"] + 0.0}
        return super().train_step(data)


WITHOUT_SOURCE: Any = {"Net": Net, "tf": tf}
TYPED = """
class Function(Net):
    @tf.function
    def train_step(self, data):
        return super(Function, self).train_step(data)
"""
exec(compile(TYPED, "<prompt>", "exec"), WITHOUT_SOURCE)


class Plain(Net):
    """AutoGraph must not convert its function, nor what that calls."""

    @tf.function(autograph=False)
    def train_step(self, data: Any):
        assert inspect.stack()[0].filename == __file__
        return super().train_step(data)


@pytest.mark.parametrize("kind", [Net, WITHOUT_SOURCE["Function"], Function, Plain])
def test_step_of_the_users_own_builds_what_it_uses_and_changes_nothing(kind):
    model = kind()
    model.compile("adam")
    build(model, lambda: {"x": NUMBERS}, "train")
    assert [v.shape.as_list() for v in model.dense.variables] == [[3, 1], [1]]
    assert len(model.optimizer.variables) >= 1 + 4  # the counter, and the slots
    # Nothing has run.
    assert int(model.optimizer.iterations) == int(model.seen.count) == 0
    np.testing.assert_array_equal(model.batch.moving_mean, np.zeros(3))
    np.testing.assert_array_equal(model.dense.kernel, np.ones([3, 1]))
    # Tensors that layers make when they are built must not belong to a discarded graph.
    np.testing.assert_allclose(model.scale(NUMBERS), [[0.25, 0.75, 1.25]])
    model.fit(tf.data.Dataset.from_tensors({"x": NUMBERS}), verbose=0)
    assert int(model.optimizer.iterations) == 1


@pytest.mark.parametrize("kind", ["train", "test", "predict"])
@pytest.mark.parametrize("is_built", [True, False])
def test_stock_step_builds_what_it_uses_and_changes_nothing(kind, is_built):
    batch = (tf.ones([2, 3, 2]), tf.ones([2, 1]))
    rnn = layers.SimpleRNN(3, stateful=True)
    counter, noise = Counter(), layers.GaussianNoise(0.1, seed=1)
    model = tf.keras.Sequential([counter, noise, rnn, layers.Dense(1)])
    if is_built:
        model.build([2, 3, 2])
    model.compile("adam", "mse", metrics=["mae", tf.keras.metrics.R2Score()])
    build(model, lambda: batch, kind)
    assert len(model.weights) >= 1 + 3 + 2
    # Nothing has run.
    assert float(counter.counted) == 0
    np.testing.assert_array_equal(rnn.states[0], np.zeros([2, 3]))
    for variable in (x for metric in model.metrics for x in metric.variables):
        np.testing.assert_array_equal(variable, np.zeros(variable.shape))
    if kind == "train":
        model.fit(tf.data.Dataset.from_tensors(batch), verbose=0)
        assert float(counter.counted) == int(model.optimizer.iterations) == 1
