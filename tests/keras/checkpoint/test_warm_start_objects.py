"""A model that begins with what fits it of a checkpoint of tf.train.Checkpoint."""

import numpy as np
import pytest
import tensorflow as tf
from warm_models import (
    IN_PARTS,
    WIDTH,
    assert_all_equal,
    assert_same_by_key,
    dense_of,
    make,
    saved,
    tables_of,
    train,
    uses_of,
)

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint import source
from tf_syncrep.python.checkpoint.directory import DamagedError
from tf_syncrep.python.keras import compat

GROWS = tfs.keras.Dynamic(50)


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


@IN_PARTS
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float16", marks=pytest.mark.ci)]
)
def test_tables_are_taken_as_from_a_checkpoint_of_ours(
    dtype, from_parts, num_parts, tmp_path, monkeypatch
):
    """Of a fixed size, growing, the one from the other, and with other numbers of rows.

    A table may be in another place of a stack, and its slots go with it.
    """
    sizes = {"user": 11, "item": 7, "shop": GROWS, "tag": GROWS, "word": 9}
    old = train(make(sizes, None, monkeypatch, from_parts))
    written(old, tmp_path)
    saved(old, tmp_path / "ours")
    taken = []
    for folder in (tmp_path, tmp_path / "ours"):
        new = make(
            {
                "item": 7,
                "tag": 8,
                "word": tfs.keras.Dynamic(40),
                "user": 13,
                "shop": tfs.keras.Dynamic(3),
            },
            None,
            monkeypatch,
            num_parts,
            dtype=dtype,
        )
        report = tfs.keras.warm_start(new, folder)
        lines = {x.name: (x.status, x.rows, x.bytes, x.note) for x in report.lines}
        taken.append(
            (tables_of(new), dense_of(new), uses_of(new, "tables/shop"), lines)
        )
    theirs, ours = taken
    assert_same_by_key(
        {x: y for x, y in theirs[0].items() if isinstance(y, dict)},
        {x: y for x, y in ours[0].items() if isinstance(y, dict)},
    )
    assert_all_equal(
        [{x: y for x, y in theirs[0].items() if not isinstance(y, dict)}, theirs[1]],
        [{x: y for x, y in ours[0].items() if not isinstance(y, dict)}, ours[1]],
    )
    assert theirs[2:] == ours[2:]
    assert theirs[3]["tables/user"][:2] == ("in part", 11)
    assert theirs[3]["tables/word"][:2] == ("taken", 9)


def test_a_table_is_taken_by_the_name_of_its_layer(tmp_path, monkeypatch):
    """Also as the variable of Keras' own layer; rows are read some at a time."""

    def of_layer(layer):
        layers = [tf.keras.Input([1], dtype="int64"), layer]
        layers += [tf.keras.layers.Flatten(), tf.keras.layers.Dense(1, name="top")]
        model = tf.keras.Sequential(layers, name="one")
        model.compile(tfs.keras.AdamAsync(0.01), loss="mse")
        return model

    def rows_of(model):
        found = {**tables_of(model), **dense_of(model)}
        return [x for name, x in sorted(found.items()) if x.shape[1:] == (WIDTH,)]

    monkeypatch.setattr(source, "_BYTES_AT_A_TIME", 3 * WIDTH * 4)
    old = train(of_layer(tfs.keras.Embedding(23, WIDTH, shards=3, name="ids")))
    written(old, tmp_path)
    for num, layer in [
        (23, tf.keras.layers.Embedding(23, WIDTH, name="ids")),
        (30, tfs.keras.Embedding(30, WIDTH, shards=2, name="ids")),
        (30, tfs.keras.Embedding(30, WIDTH, shards=6, name="ids")),
    ]:
        new = of_layer(layer)
        before = rows_of(new)
        report = tfs.keras.warm_start(new, tmp_path)
        (line,) = (x for x in report.lines if x.name.endswith("/ids/embeddings"))
        assert (line.rows, line.of_rows, line.bytes) == (23, num, 23 * 4 * WIDTH * 3)
        for was, there, here in zip(before, rows_of(old), rows_of(new), strict=True):
            np.testing.assert_array_equal(here[:23], there)
            np.testing.assert_array_equal(here[23:], was[23:])


def test_tables_whose_names_are_those_of_others_are_not_used(tmp_path):
    both = tf.train.Checkpoint(first=make({"user": 10}), second=make({"user": 10}))
    both.save(str(tmp_path / "saved"))
    new = make({"user": 10})
    before = tables_of(new)
    report = tfs.keras.warm_start(new, tmp_path)
    assert_all_equal([tables_of(new)], [before])
    assert report["tables/user"].note == "not in the source"
    assert len([x for x in report.of("not used") if x.endswith("/user")]) == 2


def test_a_table_that_grows_is_no_variable_that_is_read_at_once(tmp_path):
    written(train(make({"user": GROWS})), tmp_path)
    new = stock()
    rename = {"tables/user": "variables/ids/embeddings"}
    report = tfs.keras.warm_start(new, tmp_path, rename=rename)
    note = report["variables/ids/embeddings"].note
    assert note == "it grows there, and here it is a variable that is read at once"


def test_objects_that_are_damaged_are_an_error(tmp_path):
    written(stock(), tmp_path)
    (data,) = tmp_path.glob("saved-1.data*")
    data.write_bytes(b"")
    with pytest.raises(DamagedError, match="saved-1 cannot be read: "):
        tfs.keras.warm_start(stock(), tmp_path)


@pytest.mark.parametrize("size", [10, GROWS])
def test_damage_in_a_table_is_an_error(size, tmp_path):
    old = train(make({"user": size}))
    written(old, tmp_path)
    (data,) = tmp_path.glob("saved-1.data*")
    row = tables_of(old)["tables/user"][3].tobytes()
    data.write_bytes(data.read_bytes().replace(row, bytes(len(row))))
    with pytest.raises(DamagedError, match=r"saved-1 cannot be read.*may have been"):
        tfs.keras.warm_start(make({"user": size}), tmp_path)
