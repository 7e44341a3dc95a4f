"""Files that some tables of a layer do not fit."""

import embedding_models
import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

OPTIMIZERS = {
    "adam_async": tfs.keras.AdamAsync,
    "rowwise_adagrad": tfs.keras.RowwiseAdagrad,
}


def two_tables(sizes, optimizer, ids=(1, 2)):
    """A model with tables of a size and width each, after a step."""
    tf.keras.utils.set_random_seed(len(str(sizes)))
    inputs = {name: tf.keras.Input((), dtype="int64", name=name) for name in sizes}
    tables = [tfs.keras.TableConfig(name, *size) for name, size in sizes.items()]
    layer = embedding_models.layer_of(*tables, name="tables")
    joined = tf.keras.layers.Concatenate()(list(layer(inputs).values()))
    model = tf.keras.Model(inputs, joined)
    batch = {name: np.array(ids) for name in sizes}
    if optimizer is None:
        model(batch, training=True)
    else:
        model.compile(optimizer, loss="mse")
        width = sum(width for _, width in sizes.values())
        model.train_on_batch(batch, np.ones([2, width]))
    return model, layer


def values_of(table):
    """The vectors of a table that is an array, or keys and vectors."""
    return np.concatenate([np.asarray(x, np.float32).ravel() for x in table])


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tables_that_a_file_does_not_fit_are_skipped_alone(
    grows, name, caplog, tmp_path
):
    if grows and name == "rowwise_adagrad" and not keras_variants.IS_KERAS_3:
        pytest.skip("this Keras loads slots first, and these have any width")
    size = tfs.keras.Dynamic(9) if grows else 9
    saved, layer = two_tables(
        dict.fromkeys("ab", (size, 4)), OPTIMIZERS[name](0.1), ids=(2, 3)
    )
    saved.save_weights(tmp_path / "model.weights.h5")
    model, other = two_tables({"a": (size, 4), "b": (size, 8)}, OPTIMIZERS[name](0.1))
    before = other.get_embedding_tables()
    caplog.clear()
    model.load_weights(tmp_path / "model.weights.h5", skip_mismatch=True)
    assert [x for x in caplog.messages if "is skipped, and stays" in x] == [
        x for x in caplog.messages if x.startswith("Table 'b' is skipped")
    ]
    assert len(caplog.messages) == 1
    there, after = layer.get_embedding_tables(), other.get_embedding_tables()
    np.testing.assert_array_equal(values_of(after["a"]), values_of(there["a"]))
    np.testing.assert_array_equal(values_of(after["b"]), values_of(before["b"]))
    there, after = {}, {}
    saved.optimizer.save_own_variables(there)
    model.optimizer.save_own_variables(after)
    of_a = [slot for slot in there if slot.endswith(".a")]
    assert of_a
    for slot in of_a:
        np.testing.assert_array_equal(after[slot], there[slot])


@pytest.mark.parametrize("grows", [False, True])
def test_tables_that_a_file_lacks_are_skipped_alone(grows, tmp_path):
    size = tfs.keras.Dynamic(9) if grows else 9
    saved, layer = two_tables({"a": (size, 4)}, None)
    saved.save_weights(tmp_path / "model.weights.h5")
    model, other = two_tables(dict.fromkeys("ab", (size, 4)), None)
    with pytest.raises(ValueError, match="Missing: 'b'"):
        model.load_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5", skip_mismatch=True)
    np.testing.assert_array_equal(
        values_of(other.get_embedding_tables()["a"]),
        values_of(layer.get_embedding_tables()["a"]),
    )


def test_file_that_is_refused_changes_no_table():
    grows = tfs.keras.Dynamic(9)
    _, saved = two_tables({"a": (grows, 4), "b": (9, 4)}, "sgd")
    _, layer = two_tables({"a": (grows, 4), "b": (9, 8)}, "sgd")
    store, before = {}, layer.get_embedding_tables()
    saved.save_own_variables(store)
    with pytest.raises(ValueError, match="must have shape"):
        layer.load_own_variables(store)
    for name, table in layer.get_embedding_tables().items():
        np.testing.assert_array_equal(values_of(table), values_of(before[name]))
