"""Packs many small tensors into one with few ops, since each takes time to trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base import messages


def pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Packs tensors of numbers, whose shapes are known, into one tensor for `unpack`.

    The tensors of each dtype are concatenated into a vector. If there are several
    dtypes, the bytes of these vectors are packed.
    """
    with tf.device("/device:CPU:0"):
        all_of_it = tf.constant([-1])
        vectors = [
            tf.concat(
                [x if x.shape.rank == 1 else tf.reshape(x, all_of_it) for x in own], 0
            )
            for own in _by_dtype(tensors).values()
        ]
        return vectors[0] if len(vectors) == 1 else messages.pack(vectors)


def unpack(message: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Unpacks what `pack` has made.

    `like`: the tensors that were packed, of which only shapes and dtypes are used.
    """
    groups = _by_dtype(like)
    sizes = {
        dtype: [x.shape.num_elements() for x in own] for dtype, own in groups.items()
    }
    vectors = [message]
    if len(groups) > 1:
        specs = [tf.TensorSpec([sum(n)], dtype) for dtype, n in sizes.items()]
        vectors = messages.unpack(message, specs)
    shapes: dict[tuple[int, ...], tf.Tensor] = {}
    parts = {}
    for vector, (dtype, own) in zip(vectors, groups.items(), strict=True):
        # The split makes copies, except at multiples of 64 bytes.
        split = tf.split(vector, sizes[dtype]) if len(own) > 1 else [vector]
        parts[dtype] = iter(
            [_as_shaped(x, one, shapes) for x, one in zip(split, own, strict=True)]
        )
    return [next(parts[x.dtype]) for x in like]


def _as_shaped(vector: tf.Tensor, like: tf.Tensor, shapes: dict[Any, tf.Tensor]):
    if like.shape.rank == 1:
        return vector
    shape: Any = like.shape.as_list()
    if tuple(shape) not in shapes:
        shapes[tuple(shape)] = tf.constant(shape, tf.int32)
    return tf.reshape(vector, shapes[tuple(shape)])


def _by_dtype(tensors: Sequence[tf.Tensor]) -> dict[tf.DType, list[tf.Tensor]]:
    groups: dict[tf.DType, list[tf.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return groups
