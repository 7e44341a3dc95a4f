"""Ids as tensors of integers."""

from typing import Any

import tensorflow as tf

# Up to here a float is every integer; the next one is rounded.
_MOST_INTEGERS = {
    tf.bfloat16: 2**8,
    tf.float16: 2**11,
    tf.float32: 2**24,
    tf.float64: 2**53,
}


def refuse_strings(ids: Any, of: str) -> None:
    """Raises for ids, a tensor or a Keras tensor, that are strings."""
    if tf.as_dtype(ids.dtype) == tf.string:
        raise ValueError(
            f"Ids of {of} must be integers: put a tf.keras.layers.StringLookup or a "
            "Hashing layer before it. Received: ids of dtype string"
        )


def as_integers(ids: tf.Tensor, of: str, vocabulary_size: int) -> tf.Tensor:
    """Casts ids that are no int32 or int64.

    Keras casts ids to float without a word: a Sequential model without an `Input` does.

    Args:
        ids: the ids.
        of: whose ids they are, for the error.
        vocabulary_size: how many ids there are.

    Returns:
        The ids, int32 or int64.

    Raises:
        ValueError: no numbers, or floats that are too short for so many ids.
    """
    if ids.dtype in (tf.int32, tf.int64):
        return ids
    refuse_strings(ids, of)
    most = _MOST_INTEGERS.get(ids.dtype)
    if most is not None and vocabulary_size > most:
        raise ValueError(
            f"Ids of {of} must be int32 or int64: {ids.dtype.name} is rounded beyond "
            f"{most:,}, and there are {vocabulary_size:,} ids. (A Sequential model "
            "without an Input of that dtype casts them to float32.) Received: ids of "
            f"dtype {ids.dtype.name}"
        )
    return tf.cast(ids, tf.int32 if vocabulary_size <= tf.int32.max else tf.int64)
