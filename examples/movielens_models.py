"""Three models of who likes which film, their tables spread over parameter servers.

And how each of them is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

import tf_syncrep as tfs

# The film that is left out is the last one of each user, or any one.
LAST, ANY = "last", "any"

# A table that grows may have so many rows, far more than there are ids. A row takes no
# memory before an example names its id.
_MOST_ROWS = 100_000


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a model is made and trained."""

    epochs: int  # how often all examples are seen
    batch_size: int  # examples of an update
    learning_rate: float  # at the beginning; it goes down to nothing, along a cosine
    width: int  # elements of a vector
    shrink: float  # strength of `Shrink`
    seed: int = 0  # of weights, orders, negatives, and the choice of tested ratings
    left_out: str = LAST
    growing: bool = False  # whether tables grow with the ids that come


# By the name of the model: what suits it.
SETTINGS = {
    "neumf": Settings(8, 4096, 4e-3, width=32, shrink=1e-3),
    "mf": Settings(15, 512, 2e-3, width=64, shrink=0.1),
    "dcn": Settings(6, 512, 2e-3, width=16, shrink=1e-3),
}


@tf.keras.utils.register_keras_serializable("movielens")
class Shrink(tf.keras.layers.Layer):
    """Adds the mean of the vectors' squares to the loss, which keeps them short.

    A row of a table is shrunk whenever an example names it, as in Koren et al., "Matrix
    Factorization Techniques for Recommender Systems" (2009).
    """

    def __init__(self, strength: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.strength = strength

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments for an equal layer."""
        return {**super().get_config(), "strength": self.strength}

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        """Returns the vectors `[batch, width]` as they are."""
        squares = tf.reduce_sum(tf.square(vectors), axis=-1)
        self.add_loss(self.strength * tf.reduce_mean(squares))
        return vectors


@tf.keras.utils.register_keras_serializable("movielens")
class Cross(tf.keras.layers.Layer):
    """A cross layer, `x0 * (W x + b) + x` (Wang et al., "DCN V2", 2021)."""

    def build(self, input_shape: Any) -> None:
        """Makes the dense layer within."""
        width = int(input_shape[0][-1])
        self.dense = tf.keras.layers.Dense(width)
        self.dense.build([None, width])
        super().build(input_shape)

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Crosses `x` with `x0`, both `[batch, width]`, given as `[x0, x]`."""
        first, last = inputs
        return first * self.dense(last) + last


def neural_factorisation(
    num_users: int, num_items: int, settings: Settings
) -> tf.keras.Model:
    """NeuMF (He et al., "Neural Collaborative Filtering", 2017).

    It has the products of a user's and an item's vector, and layers over two other
    vectors of theirs. Both together give the logarithm of the odds that the user takes
    the item.

    Returns a model of `{"user": ids, "item": ids}`, `[batch]` each; gives `[batch, 1]`.
    """
    layers = tf.keras.layers
    width = settings.width
    ids = _inputs("user", "item")
    vectors = _look_up(
        ids,
        {
            f"{of}_{part}": (of, rows, width)
            for of, rows in (("user", num_users), ("item", num_items))
            for part in ("product", "layers")
        },
        settings,
    )
    product = layers.Multiply()([vectors["user_product"], vectors["item_product"]])
    hidden = layers.Concatenate()([vectors["user_layers"], vectors["item_layers"]])
    for units in (2 * width, width, width // 2):
        hidden = layers.Dense(units, activation="relu")(hidden)
    both = layers.Concatenate()([product, hidden])
    return tf.keras.Model(ids, layers.Dense(1)(both))


def biased_factorisation(
    num_users: int, num_items: int, settings: Settings, mean: float
) -> tf.keras.Model:
    """Matrix factorisation with biases (Koren et al., 2009), for ratings.

    Biases and the vectors' product are added to the mean of the ratings.

    Returns a model of `{"user": ids, "item": ids}`, `[batch]` each; gives `[batch, 1]`.
    """
    layers = tf.keras.layers
    ids = _inputs("user", "item")
    sizes = {"user": num_users, "item": num_items}
    vectors = _look_up(
        ids, {of: (of, rows, settings.width) for of, rows in sizes.items()}, settings
    )
    biases = _look_up(
        ids, {f"{of}_bias": (of, rows, 1) for of, rows in sizes.items()}, settings
    )
    product = layers.Dot(axes=1)([vectors["user"], vectors["item"]])
    total = layers.Add()([product, *biases.values()])
    return tf.keras.Model(ids, layers.Rescaling(1.0, mean)(total))


def cross_network(
    sizes: Mapping[str, int], num_genres: int, settings: Settings
) -> tf.keras.Model:
    """DCN V2 (Wang et al., 2021): cross layers beside others, over all features.

    `sizes`: how many ids each feature has, by its name.

    Returns a model of `{name: ids}`, each `[batch]`, and `"genres"` `[batch,
    num_genres]`, that gives the logarithm of odds `[batch, 1]`.
    """
    layers = tf.keras.layers
    inputs = _inputs(*sizes)
    vectors = _look_up(
        inputs,
        {name: (name, size, settings.width) for name, size in sizes.items()},
        settings,
    )
    inputs["genres"] = layers.Input([num_genres], name="genres")
    features = layers.Concatenate()([*vectors.values(), inputs["genres"]])
    crossed = features
    for _ in range(2):
        crossed = Cross()([features, crossed])
    hidden = features
    for units in (64, 32):
        hidden = layers.Dense(units, activation="relu")(hidden)
    both = layers.Concatenate()([crossed, hidden])
    return tf.keras.Model(inputs, layers.Dense(1)(both))


def _inputs(*names: str) -> dict[str, Any]:
    """Returns a Keras input for each name, with one id an example."""
    return {name: tf.keras.layers.Input([], name=name, dtype="int32") for name in names}


def _look_up(
    ids: Mapping[str, Any],
    tables: Mapping[str, tuple[str, int, int]],
    settings: Settings,
) -> dict[str, Any]:
    """Looks ids up in tables, each of which has an input, rows and a width."""
    # Without a seed of its own, a table that grows begins with the same rows in each
    # training.
    seed = settings.seed if settings.growing else None
    features = {
        name: tfs.keras.FeatureConfig(
            name,
            tfs.keras.TableConfig(
                name,
                tfs.keras.Dynamic(_MOST_ROWS) if settings.growing else rows,
                width,
                initializer=tf.keras.initializers.RandomNormal(stddev=0.01, seed=seed),
            ),
        )
        for name, (_, rows, width) in tables.items()
    }
    embedding = tfs.keras.DistributedEmbedding(features)
    vectors = embedding({name: ids[source] for name, (source, _, _) in tables.items()})
    return {name: Shrink(settings.shrink)(vector) for name, vector in vectors.items()}
