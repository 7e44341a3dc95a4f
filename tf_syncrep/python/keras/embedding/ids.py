"""Ids as tensors of integers."""

from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras import compat

# The largest numbers up to which a dtype holds every integer exactly.
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
            "Hashing layer before it, or let its table grow (tfs.keras.Dynamic). "
            "Received: ids of dtype string"
        )


def as_integers(ids: tf.Tensor, of: str, vocabulary_size: int) -> tf.Tensor:
    """Casts ids to int32 or int64, unless they are that already.

    Keras sometimes casts ids to float silently, as in a Sequential model without an
    `Input`.

    Raises ValueError: the ids are no numbers, or floats that cannot hold so many ids.
    """
    if ids.dtype in (tf.int32, tf.int64):
        return ids
    refuse_strings(ids, of)
    most = _MOST_INTEGERS.get(ids.dtype)
    if most is not None and vocabulary_size > most and not compat.has_default_ids():
        raise ValueError(
            f"Ids of {of} must be int32 or int64: {ids.dtype.name} is rounded beyond "
            f"{most:,}, and there are {vocabulary_size:,} ids. (A Sequential model "
            "without an Input of that dtype casts them to float32, and so does the "
            "export of a subclassed model without input_signature.) Received: ids of "
            f"dtype {ids.dtype.name}"
        )
    # Wider integers would wrap around, and other ids would become valid ones.
    is_wide = ids.dtype.is_integer and ids.dtype.size >= 4
    fits = vocabulary_size <= tf.int32.max and not is_wide
    if ids.dtype.is_floating:  # A cast rounds toward 0, and -0.5 would become an id.
        ids = tf.floor(ids)
    return tf.cast(ids, tf.int32 if fits else tf.int64)


def warn_of_narrow_inputs(ids: Any, of: str) -> None:
    """Warns of an `Input` to which Keras casts wider ids, so that they wrap around."""
    try:
        is_of_model = tf.keras.backend.is_keras_tensor(ids)
    except ValueError:  # Keras 2 refuses what is no tensor.
        is_of_model = False
    dtype = tf.as_dtype(ids.dtype) if is_of_model else tf.int64
    if dtype.is_integer and dtype.size < 8:
        logging.warning(
            "Ids of %s come by an Input of %s, to which Keras casts wider ids without "
            "an error: they become other ids, and the table grows with these. Make the "
            "Input with dtype='int64'.",
            of,
            dtype.name,
        )


def as_keys(ids: tf.Tensor, of: str, served: bool) -> tf.Tensor:
    """Converts ids into keys of a table that grows.

    `ids`: the ids; strings become their 64-bit fingerprints. `served`: whether keys are
    looked up in a copy of the table for serving. There floats are taken, as Keras 3
    exports a subclassed model with float32 if it is not told another signature. Raises
    ValueError: the ids are neither integers nor strings.
    """
    if ids.dtype == tf.string:
        return string_keys(ids)
    if ids.dtype.is_floating and (served or compat.has_default_ids()):
        if not compat.has_default_ids():
            logging.warning(
                "Ids of %s are traced as %s, which rounds large ids. Give the model's "
                "export an input_signature with integers or strings.",
                of,
                ids.dtype.name,
            )
        return tf.cast(ids, tf.int64)
    if not ids.dtype.is_integer:
        raise ValueError(
            f"Ids of {of} must be integers or strings, as its table grows. (A "
            "Sequential model without an Input of that dtype casts them to float32.) "
            f"Received: ids of dtype {ids.dtype.name}"
        )
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def string_keys(strings: Any) -> tf.Tensor:
    """Returns the keys of strings in tables that grow: their 64-bit fingerprints.

    Among n strings, two have the same key with a probability of about n^2 / 2^65, which
    is 0.03% for a hundred million strings.

    Args:
        strings: strings of any shape.

    Returns:
        Keys of the same shape, int64.

    Example:
    >>> keys = tfs.keras.string_keys(["anna", "ben", "anna"]).numpy()
    >>> bool(keys[0] == keys[2]), bool(keys[0] == keys[1])
    (True, False)
    """
    strings = tf.convert_to_tensor(strings, tf.string)
    # The op takes fingerprints of single elements only from a vector.
    prints = tf.fingerprint(tf.reshape(strings, [-1]), method="farmhash64")
    keys = tf.reshape(tf.bitcast(prints, tf.int64), tf.shape(strings))
    return tf.ensure_shape(keys, strings.shape)
