"""Checkpoints of tables that are restored into another layout, with any optimizer."""

import dynamic_models
import embedding_models as models
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from combinations import mostly_by_night
from same import assert_same

import tf_syncrep as tfs

NUM_PARTS = "tf_syncrep.python.keras.embedding.distributed_embedding.num_parts"
EXAMPLES, STEPS = 12, 2
WORDS = {"words": 9, "letters": 5}

OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.1, amsgrad=True, use_ema=True),
    "sgd": lambda: tf.keras.optimizers.SGD(0.5, momentum=0.9),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.5),
    "ftrl": lambda: tf.keras.optimizers.Ftrl(0.5),
    "lion": lambda: tf.keras.optimizers.Lion(0.05),
    "sync": lambda: tfs.keras.SyncReplicas(tf.keras.optimizers.Adam(0.1), 1),
    "adam_async": lambda: tfs.keras.AdamAsync(0.1),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.1),
    "lazy_ftrl": lambda: tfs.keras.FTRL(0.1, beta=1.0),
    "lazy_adagrad": lambda: tfs.keras.Adagrad(0.1),
    "lazy_momentum": lambda: tfs.keras.SGD(0.1, momentum=0.9),
}
# The average of a row that begins anew would begin at zero, and is refused.
OPTIMIZERS_OF_GROWING = {
    **OPTIMIZERS,
    "adam": lambda: tf.keras.optimizers.Adam(0.1, amsgrad=True),
}
# Slots of a stock optimizer, rounds, and our own optimizer.
QUICK = ("adagrad", "sync", "adam_async", "rowwise_adagrad")
# Parts, stacking, and parts of the layers with one table.
LAYOUTS = [(1, None, 1), (2, "auto", 3), (3, ["days"], 2)]


class Model(models.Distributed):
    """Two layers with one table each, beside the layer with several."""

    def __init__(self, shards, **options):
        super().__init__(**options)
        self.words = [
            tfs.keras.Embedding(size, 4, name=name, shards=shards)
            for name, size in WORDS.items()
        ]

    def call(self, inputs, training=None):
        ids, words = inputs
        outputs = super().call(ids, training)
        for layer in self.words:
            outputs += tf.reduce_sum(layer(words), axis=-1, keepdims=True)
        return outputs

    def tables(self):
        of_words = {layer.name: layer.get_weights()[0] for layer in self.words}
        return {**super().tables(), **of_words}


def batch(seed):
    ids, targets = models.batch(EXAMPLES, seed)
    words = np.random.default_rng(seed).integers(0, min(WORDS.values()), EXAMPLES)
    return (ids, words), targets


def make(optimizer, layout, monkeypatch):
    """A model that always begins with the same values."""
    num_parts, stacking, shards = layout
    monkeypatch.setattr(NUM_PARTS, lambda: num_parts)
    tf.keras.utils.set_random_seed(1)
    model = Model(shards, table_stacking=stacking)
    model.compile(OPTIMIZERS[optimizer](), loss="mse")
    model(batch(0)[0])
    draw = np.random.default_rng(2)
    model.set_tables(models.initial_tables())
    for layer in model.words:
        size = WORDS[layer.name]
        layer.set_weights([draw.normal(size=(size, 4)).astype(np.float32)])
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("optimizer", mostly_by_night(OPTIMIZERS, *QUICK))
def test_training_goes_on_in_any_layout_as_if_never_stopped(
    optimizer, tmp_path, monkeypatch
):
    twin = make(optimizer, LAYOUTS[0], monkeypatch)
    for number, layout in enumerate([*LAYOUTS, LAYOUTS[0]]):
        model = make(optimizer, layout, monkeypatch)
        checkpoint = tfs.keras.Checkpoint(tmp_path, model=model)
        restored = checkpoint.restore()
        assert (restored.iterations if restored else 0) == number * STEPS
        for step in range(number * STEPS, (number + 1) * STEPS):
            keras_variants.train_on_batch(twin, *batch(step))
            keras_variants.train_on_batch(model, *batch(step))
        checkpoint.save(wait=True)
        # Sums are computed in another order.
        assert_same(model.tables(), twin.tables(), 2e-5)


@pytest.mark.parametrize(
    "optimizer", mostly_by_night(OPTIMIZERS, "adagrad", "adam_async")
)
def test_growing_tables_have_the_same_bits_by_key_in_any_number_of_parts(
    optimizer, tmp_path, monkeypatch
):
    """New keys come after each restore, and those of before are trained again."""

    def make(num_parts):
        monkeypatch.setattr(NUM_PARTS, lambda: num_parts)
        return dynamic_models.growing(OPTIMIZERS_OF_GROWING[optimizer]())

    def assert_same(model):
        for name, (keys, vectors) in twin.tables().items():
            own = model.tables()[name]
            np.testing.assert_array_equal(own.keys, keys)
            np.testing.assert_allclose(
                own.vectors, vectors, tolerance, tolerance, err_msg=name
            )

    tolerance = dynamic_models.tolerance(optimizer)
    twin, num_keys = make(1), [0]
    for number, num_parts in enumerate((3, 2, 1, 3)):
        model = make(num_parts)
        checkpoint = tfs.keras.Checkpoint(tmp_path, model=model)
        restored = checkpoint.restore()
        assert (restored.iterations if restored else 0) == number * STEPS
        assert_same(model)
        for step in range(number * STEPS, (number + 1) * STEPS):
            ids, targets = dynamic_models.batch(4, step)
            for one in (twin, model):
                keras_variants.train_on_batch(one, dynamic_models.as_keys(ids), targets)
        assert_same(model)
        checkpoint.save(wait=True)
        num_keys.append(sum(len(keys) for keys, _ in twin.tables().values()))
    assert num_keys == sorted(set(num_keys))


def test_layers_may_have_tables_of_one_name(tmp_path, monkeypatch):
    def make(num_parts):
        monkeypatch.setattr(NUM_PARTS, lambda: num_parts)
        inputs = tf.keras.Input((), dtype="int64")
        layers = [
            tfs.keras.DistributedEmbedding(
                tfs.keras.FeatureConfig("f", tfs.keras.TableConfig("t", size, width))
            )
            for size, width in ((7, 2), (5, 3))
        ]
        vectors = [layer(inputs) for layer in layers]
        outputs = tf.keras.layers.Concatenate()(vectors)
        return tf.keras.Model(inputs, outputs), layers

    def checkpoint_of(model):
        model.compile(tf.keras.optimizers.Adam(0.1), loss="mse")
        return tfs.keras.Checkpoint(tmp_path, model=model)

    model, layers = make(2)
    checkpoint_of(model).save(wait=True)
    other, other_layers = make(1)
    checkpoint_of(other).restore()
    for layer, other_layer in zip(layers, other_layers, strict=True):
        np.testing.assert_array_equal(
            other_layer.get_embedding_tables()["t"], layer.get_embedding_tables()["t"]
        )
