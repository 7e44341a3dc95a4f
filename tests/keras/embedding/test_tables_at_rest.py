"""Tables of a layer that do not train, beside others that do."""

import json

import embedding_models
import numpy as np
import pytest
import saved_models
import tensorflow as tf
from same import assert_same

import tf_syncrep as tfs

IDS = {"a": np.arange(8) % 5, "b": np.arange(8) % 3}
TARGETS = np.linspace(-1.0, 1.0, 8).reshape(8, 1)


def make(sizes=(7, 7), at_rest=True, optimizer=None, **options):
    """A model with tables a and b of one width, the first of which may be at rest."""
    tf.keras.utils.set_random_seed(3)
    inputs = {name: tf.keras.Input((), dtype="int64", name=name) for name in "ab"}
    tables = [
        tfs.keras.TableConfig(name, size, 4, trainable=name == "b" or not at_rest)
        for name, size in zip("ab", sizes, strict=True)
    ]
    layer = embedding_models.layer_of(*tables, name="tables", **options)
    joined = tf.keras.layers.Concatenate()(list(layer(inputs).values()))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="top")(joined))
    # A few steps take less than a trace of each model.
    model.compile(optimizer or tfs.keras.AdamAsync(0.1), "mse", run_eagerly=True)
    return model, layer


def train(model, epochs=3):
    tfs.keras.fit(model, IDS, TARGETS, batch_size=4, epochs=epochs, verbose=0)


OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.1),
    "adam_async": lambda: tfs.keras.AdamAsync(0.1),
    "sync": lambda: tfs.keras.SyncReplicas(tfs.keras.AdamAsync(0.1), 2),
    "tables": lambda: tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.1)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_table_at_rest_stays_while_others_train(name):
    model, layer = make(optimizer=OPTIMIZERS[name]())
    before = layer.get_embedding_tables()
    train(model)
    after = layer.get_embedding_tables()
    np.testing.assert_array_equal(after["a"], before["a"])
    assert np.any(after["b"] != before["b"])
    assert len(layer.trainable_variables) == 1
    rows = [x for x in model.optimizer.variables if list(x.shape) == [7, 4]]
    assert len(rows) in (0, 2)  # of the other table; an outer optimizer lists none


def test_table_at_rest_trains_others_as_a_layer_at_rest_does():
    """The same tables in two layers, one of which does not train."""
    model, layer = make()
    tf.keras.utils.set_random_seed(3)
    inputs = {name: tf.keras.Input((), dtype="int64", name=name) for name in "ab"}
    layers = {
        name: tf.keras.layers.Embedding(7, 4, trainable=name == "b") for name in "ab"
    }
    joined = tf.keras.layers.Concatenate()([layers[x](inputs[x]) for x in "ab"])
    twin = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="top")(joined))
    twin.compile(tfs.keras.AdamAsync(0.1), loss="mse")
    twin.get_layer("top").set_weights(model.get_layer("top").get_weights())
    for name, table in layer.get_embedding_tables().items():
        layers[name].set_weights([table])
    for one in (model, twin):
        train(one)
    for name, table in layer.get_embedding_tables().items():
        (expected,) = layers[name].get_weights()
        np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-6)


def test_growing_table_at_rest_gets_and_loses_no_rows():
    size = tfs.keras.Dynamic(50, unused_for=1)
    model, layer = make((size, size))
    keys = np.array([0, 1, 99])
    layer.set_embedding_tables({"a": (keys, np.ones([3, 4]))})
    train(model, epochs=20)
    tfs.keras.maintain_tables(model)
    table, other = layer.get_embedding_tables().values()
    np.testing.assert_array_equal(table.keys, keys)
    np.testing.assert_array_equal(table.vectors, np.ones([3, 4]))
    assert len(other.keys) == 3


@pytest.mark.parametrize("is_of_one_table", [False, True])
def test_growing_layer_at_rest_gets_and_loses_no_rows(is_of_one_table, caplog):
    size = tfs.keras.Dynamic(50, unused_for=40)
    layer = tfs.keras.Embedding(size, 4)
    if not is_of_one_table:
        table = tfs.keras.TableConfig("a", size, 4)
        layer = tfs.keras.DistributedEmbedding(tfs.keras.FeatureConfig("a", table))
    model = tf.keras.Sequential(
        [tf.keras.Input((), dtype="int64"), layer, tf.keras.layers.Dense(1)]
    )
    optimizer = tfs.keras.AdamAsync(0.1)
    optimizer.build(model.trainable_variables)

    def rows_after(ids, steps, trainable):
        layer.trainable = trainable
        model.compile(optimizer, loss="mse")
        data = np.tile(ids, steps), np.ones(3 * steps)
        tfs.keras.fit(model, *data, batch_size=3, verbose=0)
        (stats,) = layer.table_stats().values()
        return stats["rows"]

    assert rows_after([7, 8, 9], steps=9, trainable=False) == 0
    assert "stays empty" not in caplog.text
    assert rows_after([1, 2, 3], steps=60, trainable=True) == 3
    before = model.get_weights()
    assert rows_after([7, 8, 9], steps=60, trainable=False) == 3
    after = model.get_weights()
    assert sum(np.any(x != y) for x, y in zip(before, after, strict=True)) == 2
    # The steps of the rest do not count, and 40 more do.
    assert rows_after([7, 8, 9], steps=30, trainable=True) == 6
    assert rows_after([7, 8, 9], steps=30, trainable=True) == 3


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("kind", ["keras", "weights", "checkpoint", "TensorFlow"])
def test_training_goes_on_from_what_was_saved(kind, grows, tmp_path):
    size = tfs.keras.Dynamic(9) if grows else 7
    model, layer = make((size, size))
    if grows:
        layer.set_embedding_tables({"a": ([0, 1, 4], np.ones([3, 4]))})
    train(model)
    other, other_layer = make((size, size))
    other.optimizer.build(other.trainable_variables)
    if kind == "keras":
        model.save(tmp_path / "m.keras")
        other = tf.keras.models.load_model(tmp_path / "m.keras")
        other_layer = other.get_layer("tables")
    else:
        save, load = saved_models.save_and_load(kind, tmp_path)
        save(model)
        load(other)
    assert_same(other_layer.get_embedding_tables(), layer.get_embedding_tables())
    for one in (model, other):
        train(one)
    assert_same(other_layer.get_embedding_tables(), layer.get_embedding_tables(), 1e-6)


@pytest.mark.parametrize("grows", [False, True])
def test_checkpoint_is_restored_where_a_table_trains_no_more(grows, tmp_path):
    size = tfs.keras.Dynamic(9) if grows else 7
    model, layer = make((size, size), at_rest=False)
    train(model)
    tfs.keras.Checkpoint(str(tmp_path), model=model).save()
    other, other_layer = make((size, size))
    other.optimizer.build(other.trainable_variables)
    tfs.keras.Checkpoint(str(tmp_path), model=other).restore()
    assert_same(other_layer.get_embedding_tables(), layer.get_embedding_tables())
    train(model)
    train(other)
    trained, rested = (
        getattr(table, "vectors", table)
        for table in (x.get_embedding_tables()["a"] for x in (layer, other_layer))
    )
    assert np.any(trained != rested)


@pytest.mark.parametrize("grows", [False, True])
def test_checkpoint_without_the_slots_of_a_table_that_trains_is_refused(
    grows, tmp_path
):
    size = tfs.keras.Dynamic(9) if grows else 7
    model, _ = make((size, size))
    train(model)
    tfs.keras.Checkpoint(str(tmp_path / "run"), model=model).save()
    other, layer = make((size, size), at_rest=False)
    other.optimizer.build(other.trainable_variables)
    before = layer.get_embedding_tables()
    with pytest.raises(ValueError, match="slots/m/tables/a"):
        tfs.keras.Checkpoint(str(tmp_path / "run"), model=other).restore()
    assert_same(layer.get_embedding_tables(), before)
    # The weights alone are in a file of Keras.
    model.save_weights(tmp_path / "m.weights.h5")
    fresh, layer = make((size, size), at_rest=False)
    fresh.load_weights(tmp_path / "m.weights.h5")
    assert_same(
        layer.get_embedding_tables(), model.get_layer("tables").get_embedding_tables()
    )


def test_configuration_says_whether_a_table_trains():
    _, layer = make()
    config = json.loads(json.dumps(layer.get_config()))
    assert [x["trainable"] for x in config["tables"]] == [False, True]
    again = type(layer).from_config(config)
    assert again.get_config() == layer.get_config()


def test_copies_have_the_table_at_rest():
    model, layer = make()
    copied = tf.keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    assert_same(
        copied.get_layer("tables").get_embedding_tables(), layer.get_embedding_tables()
    )
    assert len(copied.get_layer("tables").trainable_variables) == 1


def test_bad_settings_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="Table 'a': trainable must be True or False"):
        tfs.keras.TableConfig("a", 7, 4, trainable="no")
    with pytest.raises(ValueError, match="must all be trainable, or none of them"):
        make(table_stacking=["a", "b"])
