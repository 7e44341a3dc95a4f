"""A model that begins with what fits it of a checkpoint of tf.train.Checkpoint."""

import numpy as np
import pytest
import tensorflow as tf
from warm_models import WIDTH, assert_all_equal, dense_of, make, tables_of, train

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.directory import DamagedError
from tf_syncrep.python.keras import compat


def stock(optimizer=None, hidden="hidden"):
    """A model of Keras' own layers, like one of `make`."""
    layers = [
        tf.keras.Input([1], dtype="int64"),
        tf.keras.layers.Embedding(10, WIDTH, name="ids"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(3, name=hidden),
        tf.keras.layers.Dense(1, name="top"),
    ]
    x = layers[0]
    for layer in layers[1:]:
        x = layer(x)
    model = tf.keras.Model(layers[0], x)
    model.compile(optimizer or tfs.keras.AdamAsync(0.01), loss="mse")
    return model


def written(model, folder):
    return tf.train.Checkpoint(model=model).save(str(folder / "saved"))


def written_by_keras_2(model, folder):
    if compat.IS_KERAS_3:
        pytest.skip("Keras 3 does not write them")
    model.save_weights(folder / "saved")


@pytest.mark.parametrize(
    ("write", "num_parts"), [(written, 3), (written_by_keras_2, 1)]
)
def test_variables_and_slots_are_taken_by_their_names(
    write, num_parts, tmp_path, monkeypatch
):
    old = train(stock())
    write(old, tmp_path)
    new = make({"user": 12}, None, monkeypatch, num_parts)
    before = tables_of(new)
    report = tfs.keras.warm_start(
        new, tmp_path, rename={"variables/ids/embeddings": "tables/user"}
    )
    there, here = dense_of(old), dense_of(new)
    for name, values in tables_of(new).items():
        was = name.replace("tables/user", "variables/ids/embeddings")
        np.testing.assert_array_equal(values[:10], there[was], err_msg=name)
        np.testing.assert_array_equal(values[10:], before[name][10:])
    powers = [x for x in here if "beta_1_power/tables/user" in x]
    assert len(powers) == num_parts
    for name in powers:
        was = "slots/beta_1_power/variables/ids/embeddings/0-of-1"
        np.testing.assert_array_equal(here[name], there[was])
    for layer in ("hidden/kernel", "hidden/bias", "top/kernel", "top/bias"):
        for kind in ("", "slots/m/", "slots/v/"):
            name = f"{kind}variables/{layer}"
            np.testing.assert_array_equal(here[name], there[name], err_msg=name)
        assert report[f"variables/{layer}"].status == "taken"
    assert int(new.optimizer.iterations) == 3
    assert not report.of("not used")
    assert (report["tables/user"].rows, report["tables/user"].of_rows) == (10, 12)


@pytest.mark.parametrize("name", ["SGD", "mine"])
def test_slots_of_another_optimizer_begin_anew(name, tmp_path):
    """Its name tells, unless a user has given it, which tells nothing."""
    sgd = tf.keras.optimizers.SGD(0.1, momentum=0.9, name=name)
    written(train(stock(sgd)), tmp_path)
    report = tfs.keras.warm_start(stock(tf.keras.optimizers.Lion(0.1)), tmp_path)
    for variable in ("variables/ids/embeddings", "variables/top/kernel"):
        assert report[variable].note == (
            f"slots begin anew: they are of {name}, not of Lion"
        )


def test_layers_are_numbered_as_in_the_model(tmp_path):
    """Keras goes on counting where a program has made other layers before."""
    tf.keras.layers.Dense(1)
    old = train(stock(hidden=None))
    written(old, tmp_path)
    tf.keras.layers.Dense(1)
    new = stock(hidden=None)
    report = tfs.keras.warm_start(new, tmp_path)
    assert report["variables/dense/kernel"].status == "taken"
    np.testing.assert_array_equal(
        dense_of(new)["variables/dense/kernel"], old.layers[-2].get_weights()[0]
    )


def test_names_that_two_variables_have_are_not_used(tmp_path):
    both = tf.train.Checkpoint(first=stock(), second=stock())
    both.save(str(tmp_path / "saved"))
    new = stock()
    before = dense_of(new)
    report = tfs.keras.warm_start(new, tmp_path)
    assert_all_equal([dense_of(new)], [before])
    assert report["variables/top/kernel"].note == "not in the source"
    assert len([x for x in report.of("not used") if x.startswith("variables/")]) >= 10


@pytest.mark.parametrize("size", [10, tfs.keras.Dynamic(10)])
def test_tables_among_others_are_refused(size, tmp_path):
    path = written(make({"user": size}), tmp_path)
    for source in (path, tmp_path):
        with pytest.raises(ValueError, match=r"tables of a DistributedEmbedding"):
            tfs.keras.warm_start(make({"user": 10}), source)


def test_objects_that_are_damaged_are_an_error(tmp_path):
    written(stock(), tmp_path)
    (data,) = tmp_path.glob("saved-1.data*")
    data.write_bytes(b"")
    with pytest.raises(DamagedError, match="saved-1 cannot be read: "):
        tfs.keras.warm_start(stock(), tmp_path)
