"""Several values for another task in one tensor: each tensor sent costs a call."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

# Each byte as a string.
_BYTES = [bytes([byte]) for byte in range(256)]


def join(scalars: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes one tensor of several scalars of one dtype.

    Not by `tf.stack`: what is an element of a stack, Grappler takes from its origin.

    Args:
        scalars: the scalars.

    Returns:
        A vector of them; its elements are taken out where they are needed.
    """
    return tf.concat([tf.expand_dims(scalar, 0) for scalar in scalars], axis=0)


def pack(text: tf.Tensor, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes one tensor of a text and of tensors that differ in shape and dtype.

    It is their bytes, each copied once, as by `tf.concat`.

    Args:
        text: a scalar string.
        tensors: tensors of known shapes, of numbers of two bytes or more.

    Returns:
        A tensor for `unpack`.
    """
    # The text's length is not known over there, so it comes last.
    return tf.concat(
        [*map(_to_bytes, tensors), tf.io.decode_raw(text, tf.uint8)], axis=0
    )


def unpack(
    message: tf.Tensor, like: Sequence[tf.Tensor | tf.TensorSpec]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Takes apart what `pack` has made.

    Args:
        message: the tensor.
        like: says the shape and dtype of each of the tensors in it, as the tensors
            that were packed do. Their values are not looked at.

    Returns:
        The text, and the tensors.
    """
    *parts, text = tf.split(message, [*map(num_bytes, like), -1])
    return _to_text(text), list(map(_from_bytes, parts, like))


def num_bytes(like: tf.Tensor | tf.TensorSpec) -> int:
    """Counts the bytes of a tensor of a known shape."""
    return like.shape.num_elements() * like.dtype.size


def _to_bytes(tensor: tf.Tensor) -> tf.Tensor:
    # An error if it has another size than it was said to have: it would go on in what
    # comes after it.
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [num_bytes(tensor)])


def _from_bytes(part: tf.Tensor, like: tf.Tensor | tf.TensorSpec) -> tf.Tensor:
    shape = [*like.shape, like.dtype.size]
    return tf.bitcast(tf.reshape(part, shape), like.dtype)


def _to_text(part: tf.Tensor) -> tf.Tensor:
    """Makes a string of bytes, for which TensorFlow has no op."""
    return tf.strings.reduce_join(tf.gather(_BYTES, tf.cast(part, tf.int32)))
