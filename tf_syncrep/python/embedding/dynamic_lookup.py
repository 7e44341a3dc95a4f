"""Lookups of several features in the parts of one slab of tables that grow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import compat
from tf_syncrep.python.embedding.layout import DynamicSlab
from tf_syncrep.python.embedding.lookup import (
    Feature,
    combine_with_stock_ops,
    combined,
)
from tf_syncrep.python.ops import table_ops


def look_up(
    slab: DynamicSlab,
    parts: Sequence[table_ops.Part],
    features: Sequence[Feature],
    insert: bool,
    transfer_dtype: tf.DType | None = None,
) -> list[tf.Tensor]:
    """Looks features up: each key once, a message for each part.

    `features`: features of tables of the slab; at least one. `insert`: whether keys are
    counted, and get rows; else nothing is changed. `transfer_dtype`: dtype in which
    rows and gradients travel; None for the slab's.
    """
    requests, places = table_ops.table_requests(
        [feature.ids for feature in features],
        table_of_feature=[slab.index(feature.table) for feature in features],
        num_tables=len(slab.tables),
        num_shards=slab.num_parts,
    )
    vectors = []
    for part, request in zip(parts, requests, strict=True):
        compat.tell_tapes(part.vectors)
        _, values = table_ops.table_find(
            part, request, insert=insert, transfer_dtype=transfer_dtype
        )
        vectors.append(values)
    return combined(vectors, places, features)


def owners(keys: np.ndarray, num_parts: int) -> np.ndarray:
    """Returns which part has each key.

    `keys`: int64 of shape `[n]`, which differ. Returns int32 of shape `[n]`.
    """
    with tf.device("/device:CPU:0"):
        part_numbers = table_ops.key_owner(tf.constant(keys, tf.int64), num_parts)
    return part_numbers.numpy().astype(np.int32)


def empty_vectors(slab: DynamicSlab, features: Sequence[Feature]) -> list[tf.Tensor]:
    """Returns what `look_up` does if no key has a row; or no more than its shapes."""
    shapes = (tf.concat([tf.shape(x.ids), [slab.width]], axis=0) for x in features)
    return [
        combine_with_stock_ops(feature, tf.zeros(shape, slab.dtype))
        for feature, shape in zip(features, shapes, strict=True)
    ]
