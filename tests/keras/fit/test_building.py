"""`fit` makes missing parts of a model by tracing a step."""

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from keras_variants import Counter

import tf_syncrep as tfs
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


class Bag(tf.keras.Model):
    """Takes any number of ids."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dense = layers.Embedding(10, 4), layers.Dense(1)

    def call(self, ids):
        return self.dense(tf.reduce_mean(self.embedding(ids), axis=1))


class Outer(tf.keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


def no_batch():
    raise AssertionError


@pytest.mark.parametrize("way", ["export", "save"])
def test_model_is_exported_for_the_lengths_that_the_specs_allow(tmp_path, way):
    """And no batch is read to build it."""
    model = Bag()
    model.compile("adam", "mse")
    specs = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None, 1])
    build(model, no_batch, "train", specs)
    if way == "save":
        tf.saved_model.save(model, str(tmp_path))
    elif hasattr(model, "export"):
        model.export(str(tmp_path))
    else:
        pytest.skip("This Keras has no export.")
    loaded = tf.saved_model.load(str(tmp_path))
    serve = loaded.signatures["serving_default"]
    ((name, spec),) = serve.structured_input_signature[1].items()
    for length in (2, 5):
        ids = tf.ones([3, length], spec.dtype)
        (found,) = tf.nest.flatten(serve(**{name: ids}))
        np.testing.assert_allclose(found, model(ids), rtol=1e-5)


@pytest.mark.parametrize("shape", [None, [None, None]])
@pytest.mark.parametrize("kind", ["outermost", "within another", "within a subclass"])
def test_layer_that_needs_a_size_that_specs_do_not_tell_gets_a_batch(shape, kind):
    dense = layers.Dense(2)
    model: Any = tf.keras.Sequential([layers.Activation("relu"), dense])
    if kind == "within another":
        model = tf.keras.Sequential([model])
    elif kind == "within a subclass":
        model = Outer(model)
    model.compile("adam", "mse")
    batch = tf.ones([4, 3]), tf.ones([4, 2])
    build(model, lambda: batch, "train", (tf.TensorSpec(shape), tf.TensorSpec(shape)))
    assert dense.kernel.shape == (3, 2)
    assert model(batch[0]).shape == (4, 2)


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_composite_tensors_are_built_by_their_specs(kind):
    ids = tf.ragged.constant([[1], [2, 3]], dtype=tf.int64)
    table = tfs.keras.TableConfig("t", 10, 4)
    layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("f", table))
    model = tf.keras.Sequential([layer])
    model.compile("adam", "mse")
    x = ids if kind == "ragged" else ids.to_sparse()
    specs = tf.data.Dataset.from_tensors((x, tf.ones([2, 4]))).element_spec
    build(model, no_batch, "train", specs)
    assert layer.built
