"""A model that begins with what fits it of a file of Keras."""

import re

import numpy as np
import pytest
import tensorflow as tf
from warm_models import (
    WIDTH,
    assert_same_by_key,
    dense_of,
    make,
    tables_of,
    train,
    uses_of,
)

import tf_syncrep as tfs
from tf_syncrep.python.keras import compat

GROWS = tfs.keras.Dynamic(50)
layers = tf.keras.layers


@pytest.mark.parametrize(("ending", "num_parts"), [(".weights.h5", 1), (".keras", 3)])
def test_weights_are_taken_from_files_of_keras(
    ending, num_parts, tmp_path, monkeypatch
):
    """Slots begin anew there, and a table of fixed size may become one that grows."""
    sizes = {"user": 10, "item": 7, "shop": GROWS, "tag": GROWS}
    old = train(make(sizes, None, monkeypatch, 2))
    path = tmp_path / f"old{ending}"
    (old.save_weights if ending == ".weights.h5" else old.save)(path)
    sizes = {"user": 12, "item": GROWS, "shop": tfs.keras.Dynamic(30), "tag": 9}
    new = make(sizes, None, monkeypatch, num_parts)
    before = tables_of(new)
    report = tfs.keras.warm_start(new, path)
    after, there = tables_of(new), tables_of(old)
    np.testing.assert_array_equal(after["tables/user"][:10], there["tables/user"])
    np.testing.assert_array_equal(after["tables/user"][10:], before["tables/user"][10:])
    np.testing.assert_array_equal(
        after["slots/m/tables/user"], before["slots/m/tables/user"]
    )
    items = after["tables/item"]
    assert sorted(items) == list(range(7))
    np.testing.assert_array_equal([items[i] for i in range(7)], there["tables/item"])
    assert_same_by_key({"": after["tables/shop"]}, {"": there["tables/shop"]})
    assert uses_of(new, "tables/shop") == uses_of(old, "tables/shop")
    for number, row in there["tables/tag"].items():
        np.testing.assert_array_equal(after["tables/tag"][number], row)
    rows = {name: report[f"tables/{name}"].rows for name in sizes}
    num = len(there["tables/shop"]), len(there["tables/tag"])
    assert rows == {"user": 10, "item": 7, "shop": num[0], "tag": num[1]}
    for name in ("hidden/kernel", "hidden/bias", "top/kernel", "top/bias"):
        name = f"variables/{name}"
        np.testing.assert_array_equal(dense_of(new)[name], dense_of(old)[name])
        assert report[name].note == "slots begin anew: the source does not name them"
    assert report["optimizer/iteration"].status == "initial"
    assert report.of("not used") == ["optimizer"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("here", ["bfloat16", "float32"])
def test_tables_in_other_dtypes_are_taken_from_files_of_keras(dtype, here, tmp_path):
    sizes = {"user": 10, "item": GROWS}
    old = train(make(sizes, dtype=dtype))
    old.save_weights(tmp_path / "old.weights.h5")
    new = make(sizes, dtype=here)
    report = tfs.keras.warm_start(new, tmp_path / "old.weights.h5")
    after, there = tables_of(new), tables_of(old)
    for name in ("tables/user", "tables/item"):
        assert (f"{dtype} became {here}" in report[name].note) == (dtype != here)
        pairs = [(after[name], there[name])]
        if isinstance(there[name], dict):
            pairs = [(after[name][key], row) for key, row in there[name].items()]
        for found, expected in pairs:
            np.testing.assert_array_equal(found, tf.cast(expected, here).numpy())


def test_layers_are_renamed_in_files_of_keras(tmp_path):
    old = make({"user": 10})
    old.save_weights(tmp_path / "old.weights.h5")
    new = make({"user": 10}, dense=1)
    report = tfs.keras.warm_start(
        new,
        tmp_path / "old.weights.h5",
        rename={
            "variables/hidden": "variables/top",
            "variables/top": "variables/hidden",
        },
        pad=True,
    )
    assert report["variables/top/kernel"].source == "variables/hidden/kernel"
    assert report["variables/top/bias"].rows == 1


@pytest.mark.parametrize("name", ["missing.keras", "bad.keras", "bad.weights.h5"])
def test_files_that_are_none(name, tmp_path):
    if name.startswith("bad"):
        (tmp_path / name).write_bytes(b"no such file")
    with pytest.raises(Exception, match=r"which is not there|cannot be read"):
        tfs.keras.warm_start(make({"user": 10}), tmp_path / name)


class Block(layers.Layer):
    """Layers in attributes and in a list, most of which Keras names."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first = layers.Dense(WIDTH, name="mine")
        self.others = [layers.Dense(WIDTH), layers.Dense(WIDTH)]

    def build(self, shape):
        for layer in (self.first, *self.others):
            layer.build(shape)
        self.scale = self.add_weight(name="scale", shape=[WIDTH])
        super().build(shape)

    def call(self, x):
        for layer in (self.first, *self.others):
            x = layer(x)
        return x * self.scale


def functional():
    inputs = layers.Input([3], dtype="int64")
    grows = tfs.keras.Embedding(GROWS, WIDTH, name="grows")
    parts = tfs.keras.Embedding(10, WIDTH, name="parts", shards=3)
    x = grows(inputs) + parts(inputs) + layers.Embedding(10, WIDTH)(inputs)
    inner = [layers.Input([3, WIDTH]), layers.Dense(WIDTH), layers.Dense(WIDTH)]
    x = tf.keras.Sequential(inner, name="inner")(layers.Dense(WIDTH)(x))
    x = Block()(layers.BatchNormalization()(Block(name="around")(x)))
    return tf.keras.Model(inputs, layers.Dense(WIDTH, name="top")(x))


class Subclassed(tf.keras.Model):
    """Layers in attributes and in a list, and a variable of its own."""

    def __init__(self):
        super().__init__()
        self.shift = self.add_weight(
            name="shift", shape=[WIDTH], initializer="random_normal"
        )
        self.ids = tfs.keras.Embedding(10, WIDTH, name="ids", shards=2)
        self.block, self.many = Block(), [layers.Dense(WIDTH), layers.Dense(WIDTH)]

    def call(self, inputs):
        x = self.block(self.ids(inputs))
        for layer in self.many:
            x = layer(x)
        return x + self.shift


@pytest.mark.parametrize("build", [functional, Subclassed])
def test_layers_within_layers_are_found_whatever_keras_has_called_them(build, tmp_path):
    """It goes on counting where a program has made other layers before."""
    draw, ids = np.random.default_rng(0), np.arange(6).reshape(2, 3)
    models = []
    for _ in range(2):
        layers.Dense(1)
        models.append(build())
        models[-1].compile(tfs.keras.SGD(0.1), loss="mse")
        models[-1].train_on_batch(ids, draw.normal(size=(2, 3, WIDTH)))
    old, new = models
    old.save_weights(tmp_path / "old.weights.h5")
    report = tfs.keras.warm_start(new, tmp_path / "old.weights.h5")
    there, here = ({**tables_of(x), **dense_of(x)} for x in models)
    for name, values in there.items():
        if not name.startswith("optimizer/"):
            same = assert_same_by_key if "grows" in name else np.testing.assert_equal
            same({"": here[name]}, {"": values})
    initial = [x for x in report.of("initial") if not x.startswith("optimizer/")]
    assert initial == report.of("in part") == []
    assert set(report.of("not used")) <= {"optimizer"}


@pytest.mark.skipif(
    not compat.IS_KERAS_3, reason="files of Keras 2 have no names of layers"
)
def test_names_tell_layers_where_one_is_more(tmp_path):
    def make(*more):
        names = (*more, "a", None, "b")
        dense = [layers.Dense(WIDTH, name=name) for name in names]
        return tf.keras.Sequential([layers.Input([WIDTH]), *dense])

    old, new = make(), make("more")
    old.save_weights(tmp_path / "old.weights.h5")
    report = tfs.keras.warm_start(new, tmp_path / "old.weights.h5")
    for one, other in zip(old.layers, new.layers[1:], strict=True):
        np.testing.assert_array_equal(one.get_weights()[0], other.get_weights()[0])
    more = "variables/sequential/more"
    assert report.of("initial") == [f"{more}/kernel", f"{more}/bias"]
    renamed = {"variables/b": more}
    report = tfs.keras.warm_start(new, tmp_path / "old.weights.h5", rename=renamed)
    assert report[f"{more}/kernel"].source == "variables/b/kernel"
    assert report["variables/sequential/b/kernel"].status == "initial"


def test_what_the_model_has_no_layer_for_is_not_used(tmp_path):
    old = tf.keras.Sequential([layers.Input([WIDTH]), Block(name="gone")])
    old.save_weights(tmp_path / "old.weights.h5")
    new = tf.keras.Sequential([layers.Input([WIDTH]), layers.Dense(1, name="top")])
    report = tfs.keras.warm_start(new, tmp_path / "old.weights.h5")
    gone = [x for x in report.of("not used") if x != "optimizer"]
    assert len(gone) == 7
    assert len([x for x in gone if re.match("variables/(gone|block)/first/", x)]) == 2
