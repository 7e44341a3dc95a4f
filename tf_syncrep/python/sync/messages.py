"""Several values for another task in one tensor: each tensor sent costs a call."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def join(scalars: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes one tensor of several scalars of one dtype.

    Not by `tf.stack`: what is an element of a stack, Grappler takes from its origin.

    Args:
        scalars: the scalars.

    Returns:
        A vector of them; its elements are taken out where they are needed.
    """
    return tf.concat([tf.expand_dims(scalar, 0) for scalar in scalars], axis=0)


def pack(text: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Makes one tensor of a text and some numbers.

    Args:
        text: a scalar string.
        numbers: a vector of int64.

    Returns:
        A tensor for `unpack`.
    """
    return join([text, tf.io.serialize_tensor(numbers)])


def unpack(message: tf.Tensor, num_numbers: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Takes apart what `pack` has made.

    Args:
        message: the tensor.
        num_numbers: how many numbers there are in it.

    Returns:
        The text, and the numbers one by one.
    """
    numbers = tf.io.parse_tensor(message[1], tf.int64)
    return message[0], tf.unstack(tf.ensure_shape(numbers, [num_numbers]))
