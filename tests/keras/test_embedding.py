"""An embedding layer whose table stays where it is."""

import collections

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

ROWS, DIMENSIONS = 100, 8
IDS = np.array([[3, 7, 3], [0, 99, 42]])


def make_layer(cls, **arguments):
    layer = cls(ROWS, DIMENSIONS, **arguments)
    layer.build((None, 3))
    table = np.random.default_rng(1).normal(size=(ROWS, DIMENSIONS))
    layer.set_weights([table.astype(np.float32)])
    return layer


def native(layer):
    (table,) = layer.trainable_variables
    return keras_variants.native(table)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float32])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_vectors_and_gradients_are_those_of_keras(dtype, policy):
    results = []
    for cls in (tf.keras.layers.Embedding, tfs.keras.Embedding):
        layer = make_layer(cls, dtype=policy)
        with tf.GradientTape() as tape:
            vectors = layer(tf.constant(IDS.astype(dtype)))
            loss = tf.reduce_sum(tf.cast(vectors, tf.float32) ** 2)
        gradient = tape.gradient(loss, native(layer))
        assert isinstance(gradient, tf.IndexedSlices)
        results.append((vectors, tf.convert_to_tensor(gradient)))
    for expected, actual in zip(*results, strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(
            tf.cast(actual, tf.float32), tf.cast(expected, tf.float32)
        )


def test_no_step_reads_the_table():
    layer = make_layer(tfs.keras.Embedding)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) ** 2)
        return tape.gradient(loss, native(layer))

    concrete = step.get_concrete_function(tf.TensorSpec([None, 3], tf.int64))
    ops = collections.Counter(op.type for op in concrete.graph.get_operations())
    assert ops["ResourceGather"] == 1
    # With Keras 3's own layer there is one.
    assert not ops["ReadVariableOp"]


def test_model_with_it_is_saved_and_loaded(tmp_path):
    inputs = tf.keras.Input([3], dtype="int64")
    layer = tfs.keras.Embedding(ROWS, DIMENSIONS, mask_zero=True, name="table")
    model = tf.keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("table")) is tfs.keras.Embedding
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    mask = loaded.get_layer("table").compute_mask(tf.constant(IDS))
    np.testing.assert_array_equal(mask, IDS != 0)


def test_ids_out_of_range_are_refused():
    layer = make_layer(tfs.keras.Embedding)
    for bad in (-1, ROWS):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
            layer(tf.constant([[0, bad]]))
