"""Models of which one begins with what fits it of another one, and their tables."""

import collections
import itertools

import embedding_models
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.keras.checkpoint.contents import contents_of

NUM_PARTS = "tf_syncrep.python.keras.embedding.distributed_embedding.num_parts"
WIDTH = 4
# In how many parts a table is saved, and then is.
IN_PARTS = pytest.mark.parametrize(
    ("from_parts", "num_parts"),
    [
        pytest.param(*x, marks=() if x in ((2, 3), (3, 1)) else pytest.mark.ci)
        for x in itertools.product((1, 2, 3), repeat=2)
    ],
)


def make(
    sizes, optimizer=None, monkeypatch=None, num_parts=1, dense=3, dtype="float32"
):
    """A model with tables of these sizes, whose values depend on nothing but these."""
    if monkeypatch is not None:
        monkeypatch.setattr(NUM_PARTS, lambda: num_parts)
    tf.keras.utils.set_random_seed(len(sizes))
    tables = [
        tfs.keras.TableConfig(name, size, WIDTH, initializer="random_normal")
        for name, size in sizes.items()
    ]
    inputs = tf.keras.Input([len(sizes)], dtype="int64")
    layer = embedding_models.layer_of(*tables, name="tables", dtype=dtype)
    vectors = layer({name: inputs[:, i] for i, name in enumerate(sizes)})
    joined = tf.keras.layers.Concatenate()([*vectors.values()])
    hidden = tf.keras.layers.Dense(dense, name="hidden")(joined)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="top")(hidden))
    model.compile(optimizer or tfs.keras.AdamAsync(0.01), loss="mse")
    return model


def train(model, keys=None, steps=3):
    """Trains on ids below 7, or on some keys, so that there are slots of all kinds."""
    draw = np.random.default_rng(0)
    num = model.inputs[0].shape[1]
    for _ in range(steps):
        ids = (
            draw.integers(0, 7, (16, num))
            if keys is None
            else draw.choice(keys, (16, num))
        )
        model.train_on_batch(tf.constant(ids), tf.constant(draw.normal(size=(16, 1))))
    return model


def tables_of(model, slots=True):
    """All tables and their slots, by name; those that grow as dicts by key."""
    contents = contents_of(model)
    found = {}
    for share in contents.shares:
        for group in share.without_keyed().groups:
            begin = 0
            for piece in group.pieces:
                for name, variable in zip(piece.names, group.variables, strict=True):
                    values = variable.numpy()
                    shape = (piece.vocabulary, *values.shape[1:])
                    whole = found.setdefault(name, np.zeros(shape, values.dtype))
                    whole[piece.first :: piece.stride] = values[
                        begin : begin + piece.num_rows
                    ]
                begin += piece.num_rows
    for table, arrays in parts_of(contents):
        own, keys, uses, *beside = arrays
        names = [table.arrays[0], *table.arrays[3:]]
        (rows,) = np.nonzero(uses[:, 1] > 0)
        for name, values in zip(names, [own, *beside], strict=True):
            of_table = found.setdefault(name, {})
            of_table |= {int(keys[i]): values[i] for i in rows}
    return found


def parts_of(contents):
    """Yields tables that grow with the arrays of each part; several share variables."""
    begins = collections.Counter()
    for table in contents.keyed_tables:
        for part in table.parts:
            begin = begins[id(part.variables[0])]
            begins[id(part.variables[0])] += part.num_rows
            rows = slice(begin, begin + part.num_rows)
            yield table, [x.numpy()[rows] for x in part.variables]


def dense_of(model):
    wholes = {}
    for share in contents_of(model).shares:
        wholes |= {name: x.numpy() for name, x in share.wholes.items()}
    return wholes


def uses_of(model, name):
    """How often each key of a table was used, and when it was last."""
    uses = {}
    for table, (_, keys, use, *_) in parts_of(contents_of(model)):
        if table.name == name:
            pairs = zip(keys, use, strict=True)
            uses |= {int(k): (u[1], u[0]) for k, u in pairs if u[1] > 0}
    return uses


def saved(model, folder, **options):
    checkpoint = tfs.keras.Checkpoint(folder, model=model, **options)
    checkpoint.save(wait=True)
    return checkpoint


def assert_all_equal(found, expected):
    for own, other in zip(found, expected, strict=True):
        assert own.keys() == other.keys()
        for name, values in own.items():
            np.testing.assert_array_equal(values, other[name], err_msg=name)


def assert_same_by_key(found, expected, tolerance=0):
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert found[name].keys() == rows.keys(), name
        for key, values in rows.items():
            np.testing.assert_allclose(
                found[name][key], values, tolerance, tolerance, err_msg=name
            )
