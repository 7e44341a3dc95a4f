"""Packs values for another task into one tensor: each tensor sent costs a call."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_syncrep.python.base.sizes import num_bytes

_Like = tf.Tensor | tf.TensorSpec

# Each byte as a string.
_BYTES = [bytes([byte]) for byte in range(256)]


def join(scalars: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes a vector of scalars of one dtype.

    `tf.stack` would not do: Grappler takes elements of a stack from their origins.
    """
    return tf.concat([tf.expand_dims(scalar, 0) for scalar in scalars], axis=0)


def pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes one tensor of several that differ in shape and dtype.

    The result consists of their bytes. Each is copied once, as by `tf.concat`, and once
    more when the tensor is taken apart. Both happen on the host, since everything that
    is sent goes through it.
    """
    with tf.device("/device:CPU:0"):
        parts = [_to_bytes(tensor) for tensor in tensors]
        lengths = [
            tf.size(part, tf.int64)
            for part, tensor in zip(parts, tensors, strict=True)
            if _is_of_any_length(tensor)
        ]
        if lengths:
            parts.insert(0, _to_bytes(join(lengths)))
        return tf.concat(parts, axis=0)


def unpack(message: tf.Tensor, like: Sequence[_Like]) -> list[tf.Tensor]:
    """Takes a tensor of `pack` apart.

    `like`: gives the shape and dtype of each packed tensor; for example the tensors
    themselves. Their values are not read.
    """
    head = tf.TensorSpec([sum(map(_is_of_any_length, like))], tf.int64)
    lengths = iter(())
    if head.shape[0]:
        lengths = iter(tf.unstack(_from_bytes(message[: num_bytes(head)], head)))
    sizes = [
        next(lengths) if _is_of_any_length(one) else num_bytes(one) for one in like
    ]
    # A split copies only those parts that do not begin at a multiple of 64 bytes.
    _, *parts = tf.split(message, [num_bytes(head), *sizes])
    return list(map(_from_bytes, parts, like))


def _is_of_any_length(like: _Like) -> bool:
    """Returns whether the message states the length, at its beginning."""
    return like.dtype == tf.string or not like.shape.is_fully_defined()


def _to_bytes(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype == tf.string:
        return tf.io.decode_raw(tensor, tf.uint8)
    # This raises an error if the tensor has another size than `like` says: otherwise
    # the tensors after it would be wrong.
    size = -1 if _is_of_any_length(tensor) else num_bytes(tensor)
    # TensorFlow cannot bitcast truth values.
    convert = tf.cast if tensor.dtype == tf.bool else tf.bitcast
    return tf.reshape(convert(tensor, tf.uint8), [size])


def _from_bytes(part: tf.Tensor, like: _Like) -> tf.Tensor:
    if like.dtype == tf.string:
        return _to_text(part)
    shape = [-1 if size is None else size for size in like.shape.as_list()]
    if like.dtype.size > 1:
        shape.append(like.dtype.size)
    convert = tf.cast if like.dtype == tf.bool else tf.bitcast
    return convert(tf.reshape(part, shape), like.dtype)


def _to_text(part: tf.Tensor) -> tf.Tensor:
    """Makes a string of bytes, for which TensorFlow has no op."""
    return tf.strings.reduce_join(tf.gather(_BYTES, tf.cast(part, tf.int32)))
