"""Models of several embedding tables: by one layer for all, and by one for each."""

import contextlib
from typing import Any

import hops
import keras_variants
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

WIDTH = 6
# Two tables have the same width, one of which two features share; another differs.
SIZES = {"movies": 31, "users": 50, "days": 7}
WIDTHS = {"movies": WIDTH, "users": WIDTH, "days": 3}
FEATURES = {"watched": "movies", "candidate": "movies", "user": "users", "day": "days"}
SHAPES = {"watched": (4,), "candidate": (), "user": (), "day": (2,)}


def initial_tables(seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        name: draw.normal(size=(size, WIDTHS[name])).astype(np.float32)
        for name, size in SIZES.items()
    }


def batch(num_examples: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    return drawn(num_examples, seed, SIZES, FEATURES, SHAPES)


def drawn(num_examples, seed, sizes, features, shapes):
    """The same for other tables and features."""
    draw = np.random.default_rng(seed)
    ids = {
        name: draw.integers(0, sizes[table], (num_examples, *shapes[name]))
        for name, table in features.items()
    }
    return ids, draw.normal(size=(num_examples, 1)).astype(np.float32)


def feature_configs(optimizers: dict[str, Any] | None = None) -> dict[str, Any]:
    """The configurations for the one layer with all tables.

    Some tables may have optimizers of their own.
    """
    tables = {
        name: tfs.keras.TableConfig(
            name, size, WIDTHS[name], optimizer=(optimizers or {}).get(name)
        )
        for name, size in SIZES.items()
    }
    return {
        feature: tfs.keras.FeatureConfig(feature, tables[table])
        for feature, table in FEATURES.items()
    }


def layer_of(*tables: Any, **options: Any) -> Any:
    """A layer that has for each table a feature of the same name."""
    features = {x.name: tfs.keras.FeatureConfig(x.name, x) for x in tables}
    return tfs.keras.DistributedEmbedding(features, **options)


def messages_of_a_step(
    strategy: Any, make_layer: Any, make_optimizer: Any, ids: Any
) -> tuple[int, int]:
    """How many tensors a step of the layer alone sends, and how many parts it has."""
    with strategy.scope():
        layer, optimizer = make_layer(), make_optimizer()
        layer.build()
        variables = layer.trainable_variables
        optimizer.build(variables)

    def loss():
        return tf.add_n(list(map(tf.reduce_sum, layer(ids, training=True).values())))

    def step():
        with getattr(optimizer, "step", contextlib.nullcontext)():
            keras_variants.update(optimizer, variables, loss)

    with strategy.scope():
        function = tf.function(lambda: strategy.run(step)).get_concrete_function()
    return hops.messages(function), len(variables)


class _Model(tf.keras.Model):
    """A dense layer after the vectors of all features."""

    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids, training=None):
        vectors = self.vectors(ids, training)
        return self.dense(tf.concat([vectors[name] for name in FEATURES], axis=-1))


class Distributed(_Model):
    """One `DistributedEmbedding`."""

    def __init__(self, optimizers: dict[str, Any] | None = None, **options: Any):
        super().__init__()
        configs = feature_configs(optimizers=optimizers)
        self.embedding = tfs.keras.DistributedEmbedding(configs, **options)

    def vectors(self, ids, training):
        return self.embedding(ids, training=training)

    def tables(self):
        return self.embedding.get_embedding_tables()

    def set_tables(self, tables):
        self.embedding.set_embedding_tables(tables)


class Plain(_Model):
    """A layer of Keras's own for each table."""

    def __init__(self):
        super().__init__()
        self.embeddings = {
            name: tf.keras.layers.Embedding(size, WIDTHS[name], name=name)
            for name, size in SIZES.items()
        }
        self.layers_of_tables = list(self.embeddings.values())

    def vectors(self, ids, training):
        del training
        vectors = {}
        for name, table in FEATURES.items():
            vectors[name] = self.embeddings[table](ids[name])
            if SHAPES[name]:
                vectors[name] = tf.reduce_mean(vectors[name], axis=1)
        return vectors

    def tables(self):
        return {name: x.get_weights()[0] for name, x in self.embeddings.items()}

    def set_tables(self, tables):
        for name, values in tables.items():
            self.embeddings[name].set_weights([values])


def make(
    cls: Any, optimizer: Any, tables: dict[str, np.ndarray], **options: Any
) -> Any:
    """A compiled model, built, with these tables."""
    model = cls(**options)
    model.compile(optimizer, loss="mse")
    model(batch(2)[0])
    model.set_tables(tables)
    return model


def variables_of(layer: Any) -> list[tf.Variable]:
    return [keras_variants.native(x) for x in layer.trainable_variables]
