"""Lookups of several features in the parts of one slab."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.embedding import compat
from tf_syncrep.python.embedding.layout import Slab, Table
from tf_syncrep.python.ops import embedding_ops


@dataclasses.dataclass(frozen=True)
class Feature:
    """The ids that a batch looks up in a table for one feature.

    `ids`: int32 or int64. A vector if there are `row_splits`; otherwise of any shape,
    whose last axis is combined if there is a combiner. `combiner`: `"sum"`, `"mean"`,
    `"sqrtn"`, or None for one vector for each id. `row_splits`: None, or int64: where
    the ids of each example begin and end. `weights`: None, or float32: a weight for
    each id.
    """

    name: str
    table: Table
    ids: tf.Tensor
    combiner: str | None = None
    row_splits: tf.Tensor | None = None
    weights: tf.Tensor | None = None


def look_up(
    slab: Slab,
    parts: Sequence[Any],
    features: Sequence[Feature],
    transfer_dtype: tf.DType | None = None,
) -> list[tf.Tensor]:
    """Looks features up by this package's ops: each row once, a message for each part.

    `features`: features of the slab's tables; at least one. `transfer_dtype`: the dtype
    in which rows and gradients are sent; None for the slab's. Returns for each feature
    its vectors: float64 if the slab is float64, otherwise float32.
    """
    rows, places = embedding_ops.embedding_rows(
        [feature.ids for feature in features],
        num_rows=slab.num_rows,
        num_shards=slab.num_parts,
        first_rows=[slab.first_row(feature.table) for feature in features],
        vocabulary_sizes=[feature.table.vocabulary_size for feature in features],
        features=[feature.name for feature in features],
        tables=[feature.table.name for feature in features],
        # No part has more rows than the first one.
        dtype=tf.int32 if slab.part_rows(0) <= tf.int32.max else tf.int64,
    )
    vectors = []
    for part, part_rows in zip(parts, rows, strict=True):
        compat.tell_tapes(part)
        with tf.device(part.device):
            vectors.append(
                embedding_ops.embedding_gather(
                    part.handle,
                    part_rows,
                    shape=part.shape,
                    dtype=part.dtype,
                    transfer_dtype=transfer_dtype,
                )
            )
    return combined(vectors, places, features)


def combined(
    vectors: Sequence[tf.Tensor],
    places: Sequence[tf.Tensor],
    features: Sequence[Feature],
) -> list[tf.Tensor]:
    """Lays out what was looked up for the features."""
    return embedding_ops.embedding_combine(
        vectors,
        places,
        [feature.combiner for feature in features],
        [feature.row_splits for feature in features],
        [feature.weights for feature in features],
    )


def look_up_by_slab(
    slabs: Sequence[Any],
    features: Sequence[Feature],
    look_up_in: Callable[[Any, list[Feature]], list[tf.Tensor]],
) -> Iterator[tuple[int, tf.Tensor]]:
    """Looks up features of some slabs, and yields their places with their vectors."""
    for slab in slabs:
        names = {table.name for table in slab.tables}
        places = [i for i, x in enumerate(features) if x.table.name in names]
        if places:
            found = look_up_in(slab, [features[i] for i in places])
            yield from zip(places, found, strict=True)


def look_up_with_stock_ops(
    slab: Slab, parts: Sequence[Any], features: Sequence[Feature]
) -> list[tf.Tensor]:
    """Does the same with TensorFlow's own ops, on any device and in any process.

    Returns for each feature its vectors, as `look_up` returns them.
    """
    return [_look_up_one(slab, parts, feature) for feature in features]


def _look_up_one(slab, parts, feature):
    rows = checked_ids(feature) + slab.first_row(feature.table)
    if len(parts) == 1:
        vectors = tf.gather(parts[0], rows)
    else:
        # embedding_lookup takes row g of the stack from row g // n of part g % n, too.
        vectors = tf.compat.v1.nn.embedding_lookup(
            list(parts), rows, partition_strategy="mod"
        )
    return combine_with_stock_ops(feature, vectors)


def checked_ids(feature: Feature) -> tf.Tensor:
    """Returns the ids as int64, and checks that each is in the table's vocabulary."""
    vocabulary_size = feature.table.vocabulary_size
    ids = tf.cast(feature.ids, tf.int64)
    # The stack may continue with another table after the end of this one.
    are_ids = tf.debugging.Assert(
        tf.reduce_all((ids >= 0) & (ids < vocabulary_size)),
        [
            f"ids of feature {feature.name} must be in [0, {vocabulary_size}), the "
            f"vocabulary of table {feature.table.name}. Received: ids from",
            tf.reduce_min(ids),
            "to",
            tf.reduce_max(ids),
        ],
    )
    with tf.control_dependencies([are_ids] if are_ids is not None else []):
        return tf.identity(ids)


def combine_with_stock_ops(feature: Feature, vectors: tf.Tensor) -> tf.Tensor:
    """Combines the vectors of a feature with TensorFlow's own ops.

    Returns its vectors: float64 if `vectors` is float64, otherwise float32.
    """
    vectors = tf.cast(
        vectors, tf.float64 if vectors.dtype == tf.float64 else tf.float32
    )
    if feature.combiner is None:
        return vectors
    weights = feature.weights
    if weights is None:
        weights = tf.ones_like(feature.ids, dtype=vectors.dtype)
    weights = tf.cast(weights, vectors.dtype)
    vectors *= tf.expand_dims(weights, -1)
    sums, divisors = _sum(vectors, feature), None
    if feature.combiner == "mean":
        divisors = _sum(weights, feature)
    elif feature.combiner == "sqrtn":
        divisors = tf.sqrt(_sum(weights * weights, feature))
    if divisors is None:
        return sums
    # As this package's ops do it, to the same bits.
    scales = tf.math.divide_no_nan(tf.ones_like(divisors), divisors)
    return sums * tf.expand_dims(scales, -1)


def _sum(values, feature):
    """Sums values over the ids of each example."""
    if feature.row_splits is None:
        return tf.reduce_sum(values, axis=feature.ids.shape.rank - 1)
    splits = feature.row_splits
    examples = tf.ragged.row_splits_to_segment_ids(splits)
    return tf.math.unsorted_segment_sum(values, examples, tf.size(splits) - 1)
