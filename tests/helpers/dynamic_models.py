"""Models whose tables grow, beside models with tables of fixed size.

A model of either kind trains on one number per example, from ids of two features that
share a table, and of one with a table of its own. The ids of the fixed tables number
the keys of those that grow, in ascending order.
"""

from typing import Any

import embedding_models
import keras_variants
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

WIDTH = 6
SIZES = {"items": 40, "users": 25}
FEATURES = {"watched": "items", "candidate": "items", "user": "users"}
SHAPES = {"watched": (3,), "candidate": (), "user": ()}
# Keys of all sizes, negative ones too.
KEYS = {
    name: np.unique(
        np.random.default_rng(len(name)).integers(-(2**63), 2**63 - 1, 2 * size)
    )[:size]
    for name, size in SIZES.items()
}


# Optimizers with slots of each kind.
OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.05),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.05),
    "adam_async": lambda: tfs.keras.AdamAsync(0.05),
}


def batch(num_examples: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ids of the fixed tables, and targets."""
    return embedding_models.drawn(num_examples, seed, SIZES, FEATURES, SHAPES)


def as_keys(ids: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same ids of the tables that grow."""
    return {name: KEYS[FEATURES[name]][x] for name, x in ids.items()}


def all_ids() -> dict[str, np.ndarray]:
    """Ids that name all rows of all tables."""
    num = max(SIZES.values())
    return {
        name: np.broadcast_to(
            np.arange(num).reshape([num, *[1] * len(SHAPES[name])]) % SIZES[table],
            (num, *SHAPES[name]),
        )
        for name, table in FEATURES.items()
    }


class Model(tf.keras.Model):
    """A dense layer after the vectors of all features."""

    def __init__(self, sizes: dict[str, Any], own: Any = None, **options: Any):
        """Makes it; `own` has optimizers of tables."""
        super().__init__()
        own = own or {}
        tables = {
            name: tfs.keras.TableConfig(name, size, WIDTH, optimizer=own.get(name))
            for name, size in sizes.items()
        }
        self.embedding = tfs.keras.DistributedEmbedding(
            {
                feature: tfs.keras.FeatureConfig(feature, tables[table])
                for feature, table in FEATURES.items()
            },
            **options,
        )
        self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids, training=None):
        vectors = self.embedding(ids, training=training)
        return self.dense(tf.concat([vectors[name] for name in FEATURES], axis=-1))

    def tables(self):
        return self.embedding.get_embedding_tables()


def growing(optimizer: Any, own: Any = None, **options: Any) -> Model:
    """A model whose tables grow, with room for all keys, and no row yet."""
    sizes = {
        name: tfs.keras.Dynamic(4 * size, **options) for name, size in SIZES.items()
    }
    return compiled(Model(sizes, own), optimizer)


def fixed(optimizer: Any, tables: dict[str, Any], own: Any = None) -> Model:
    """A model with tables of fixed size, of these vectors."""
    model = compiled(Model(SIZES, own), optimizer)
    model.embedding.set_embedding_tables(
        {name: vectors for name, (_, vectors) in tables.items()}
    )
    return model


class Both(tf.keras.Model):
    """A model that grows and one of fixed size, in one.

    So each update of both is of the same batches, whichever these are. Its inputs are
    keys and ids, and its outputs those of both.
    """

    def __init__(self, optimizer: Any, tables: dict[str, Any]):
        """Makes it, with the vectors of `tables` in the fixed tables."""
        super().__init__()
        sizes = {name: tfs.keras.Dynamic(4 * size) for name, size in SIZES.items()}
        self.growing, self.fixed = Model(sizes), Model(SIZES)
        self.compile(optimizer, loss="mse")
        self([batch(2)[0]] * 2)
        self.fixed.embedding.set_embedding_tables(
            {name: vectors for name, (_, vectors) in tables.items()}
        )

    def call(self, inputs, training=None):
        keys, ids = inputs
        outputs = [
            self.growing(keys, training=training),
            self.fixed(ids, training=training),
        ]
        return tf.concat(outputs, axis=-1)


def compiled(model: Model, optimizer: Any) -> Model:
    """The model, compiled and built; no row is made."""
    model.compile(optimizer, loss="mse")
    model(batch(2)[0])
    return model


def initial_tables() -> dict[str, Any]:
    """The initial keys and vectors of the tables of `growing`."""
    model = growing("sgd")
    model(as_keys(all_ids()), training=True)
    tables = model.tables()
    assert all(np.array_equal(tables[name].keys, KEYS[name]) for name in SIZES)
    return tables


def dataset(seeds: Any, num_examples: int, with_keys: bool) -> tf.data.Dataset:
    batches = [batch(num_examples, seed) for seed in seeds]
    ids = [as_keys(x) if with_keys else x for x, _ in batches]
    data = ({name: np.stack([x[name] for x in ids]) for name in FEATURES},)
    return tf.data.Dataset.from_tensor_slices(
        (*data, np.stack([targets for _, targets in batches]))
    )


def tolerance(optimizer: str) -> float:
    """How much elements may differ whose rows are at other places.

    TensorFlow's ops for Adagrad and Ftrl, and its reciprocal root for RMSprop, which
    Keras 2 calls, round an element depending on its place.
    """
    rounded = ("adagrad", "ftrl", "rmsprop")
    is_rounded = optimizer in rounded and not keras_variants.IS_KERAS_3
    return 1e-6 if is_rounded else 0.0


def assert_same_by_key(
    growing_tables: Any, fixed_tables: Any, tolerance: float = 0.0
) -> None:
    """All existing rows have the same bits as in the fixed tables."""
    for name, (keys, vectors) in growing_tables.items():
        rows = np.searchsorted(KEYS[name], keys)
        np.testing.assert_array_equal(KEYS[name][rows], keys)
        np.testing.assert_allclose(
            vectors, fixed_tables[name][rows], rtol=tolerance, atol=tolerance
        )
