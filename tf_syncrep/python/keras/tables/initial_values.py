"""Initial values of parts of tables."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python


def _classes(*names):
    return frozenset(getattr(tf.keras.initializers, name) for name in names)


# The classes whose scale depends on the shape of the table.
SCALING = _classes(
    "VarianceScaling",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "LecunNormal",
    "LecunUniform",
)
# The classes whose values depend on the shape only through their scale, or not at all.
# A class that a user derives from one of them may look at the whole table.
_ELEMENTWISE = SCALING | _classes(
    "Constant", "Zeros", "Ones", "RandomNormal", "RandomUniform", "TruncatedNormal"
)


def seed_of(initializer: Any) -> int | None:
    """Returns the seed of an initializer, or of the generator that it draws from."""
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    seed = config.get("seed")
    if isinstance(seed, Mapping):  # of a SeedGenerator of Keras 3
        seed = seed["config"]["seed"]
    seed = as_python(seed)
    return seed if isinstance(seed, int) else None


def initial_rows(
    initializer: Any,
    table: Any,
    num_rows: int,
    first_id: int,
    step: int,
    dtype: Any,
) -> Any:
    """Makes the initial values of some rows of a table.

    Keras' elementwise initializers are called for these rows alone, with the scale of
    the whole table; other rows get other numbers even if the initializer has a seed.
    All other initializers make the whole table, of which these rows are taken.

    Returns a tensor of shape `[num_rows, width]`.
    """
    size = table.vocabulary_size
    if _is_elementwise(initializer, table.width) and num_rows < size:
        initializer = _of_rows(initializer, table, num_rows, first_id)
        return initializer((num_rows, table.width), dtype=dtype)
    values = initializer((size, table.width), dtype=dtype)
    return values[first_id::step][:num_rows]


def _is_elementwise(initializer, width):
    if type(initializer) not in _ELEMENTWISE:
        return False
    # A constant may also be an array that has a row for each row of the table.
    return np.shape(getattr(initializer, "value", 0)) in ((), (width,))


def _of_rows(initializer, table, num_rows, first_id):
    config = initializer.get_config()
    if "seed" not in config:
        return initializer
    if isinstance(config["seed"], Mapping):
        # The generator itself draws other numbers for each part.
        config["seed"] = initializer.seed
    elif (seed := seed_of(initializer)) is not None:
        name = f"{seed}/{table.name}/{first_id}"
        config["seed"] = zlib.crc32(name.encode()) & 0x7FFFFFFF
    if not isinstance(initializer, tf.keras.initializers.VarianceScaling):
        return type(initializer).from_config(config)
    # The initializer divides by the sides of the shape that it is asked for.
    rows, width = table.vocabulary_size, table.width
    sides = {
        "fan_in": (rows, num_rows),
        "fan_out": (1, 1),
        "fan_avg": (rows + width, num_rows + width),
    }
    whole, part = sides[initializer.mode]
    return tf.keras.initializers.VarianceScaling(
        initializer.scale * part / whole,
        initializer.mode,
        initializer.distribution,
        config["seed"],
    )
