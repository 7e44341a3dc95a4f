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


def as_keys(ids: tf.Tensor, of: str) -> tf.Tensor:
    """Makes keys of a table that grows of ids.

    Args:
        ids: the ids; of strings the 64-bit fingerprints are the keys.
        of: whose ids they are, for the error.

    Returns:
        The keys, int32 or int64, of the same shape.

    Raises:
        ValueError: floats, or what is no number.
    """
    if ids.dtype == tf.string:
        return string_keys(ids)
    if not ids.dtype.is_integer:
        raise ValueError(
            f"Ids of {of} must be integers or strings, as its table grows. (A "
            "Sequential model without an Input of that dtype casts them to float32.) "
            f"Received: ids of dtype {ids.dtype.name}"
        )
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def string_keys(strings: Any) -> tf.Tensor:
    """The keys that tables that grow know strings by: their 64-bit fingerprints.

    Of n strings two have one key with a probability of about n^2 / 2^65: for a hundred
    million strings 0.03%.

    Args:
        strings: of any shape.

    Returns:
        int64 of the same shape.

    Example:
    >>> keys = tfs.keras.string_keys(["anna", "ben", "anna"]).numpy()
    >>> bool(keys[0] == keys[2]), bool(keys[0] == keys[1])
    (True, False)
    """
    strings = tf.convert_to_tensor(strings, tf.string)
    # Of each element by itself, of a vector alone.
    prints = tf.fingerprint(tf.reshape(strings, [-1]), method="farmhash64")
    keys = tf.reshape(tf.bitcast(prints, tf.int64), tf.shape(strings))
    return tf.ensure_shape(keys, strings.shape)
