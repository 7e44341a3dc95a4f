"""Lookups in partitioned tables of TensorFlow 1 graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.embedding import compat
from tf_syncrep.python.embedding.id_weights import flat_weights
from tf_syncrep.python.embedding.ragged import as_ragged, is_ragged
from tf_syncrep.python.ops import embedding_ops

__all__ = ["embedding_lookup"]

_COMBINERS = (None, "sum", "mean", "sqrtn")
_STRATEGIES = ("mod", "div")


def embedding_lookup(
    params: Any,
    ids: Any,
    *,
    weights: Any = None,
    combiner: str | None = None,
    partition_strategy: str = "mod",
    transfer_dtype: Any = None,
    name: str = "embedding_lookup",
) -> tf.Tensor:
    """Looks up rows of a partitioned table, each distinct one once.

    It returns what `tf.compat.v1.nn.embedding_lookup` and `embedding_lookup_sparse`
    return, with fewer messages: a batch sends each part the numbers of the distinct
    rows that it needs, gets these rows, and sends back one gradient for each, in
    ascending order. The table has a fixed size; for tables that grow, use Keras layers:
    `tfs.keras.DistributedEmbedding` with a `tfs.keras.Dynamic`.

    Args:
        params: a `PartitionedVariable`, a variable, or a list of variables: the parts
            of a table of shape `[rows, width]`. Rows of resource variables are never
            sent twice; reference variables are read by TensorFlow's own op.
        ids: int32 or int64. A tensor of any shape; with a combiner, the ids of the
            last axis are one example's. Or, with a combiner, a `tf.SparseTensor` of
            rank 2 or a `tf.RaggedTensor` of `[batch, None]`.
        weights: None, or float32, of the kind and shape of `ids`, with a combiner. No
            gradient flows to them.
        combiner: `"sum"`, `"mean"`, `"sqrtn"`, or None for one vector for each id. The
            vector of an example without ids is 0.
        partition_strategy: `"mod"`: row r is in part `r % len(params)`, for lists of
            variables; or `"div"`: each part has a range of the rows, part 0 the first
            ones. A `PartitionedVariable` is always `"div"`.
        transfer_dtype: half or bfloat16, the dtype in which rows and gradients of
            float32 parts are sent; None for their own. Only for resource variables.
        name: name of the table in errors and of the ops' scope.

    Returns:
        The vectors, of shape `ids.shape + [width]`, without the last axis of the ids if
        there is a combiner. They are float64 for a float64 table, and float32 for all
        others.

    Raises:
        ValueError: the arguments do not fit together.
        tf.errors.InvalidArgumentError: when the op runs, an id is not in the table.

    Example:
    ```python
    import tensorflow.compat.v1 as tf
    import tf_syncrep as tfs

    with tf.Graph().as_default():
        table = tf.get_variable(
            "table",
            [1000, 16],
            partitioner=tf.fixed_size_partitioner(2),
            use_resource=True,
        )
        ids = tf.constant([[7, 7, 3], [999, 0, 1]])
        vectors = tfs.train.embedding_lookup(table, ids, combiner="mean")
        loss = tf.reduce_sum(vectors**2)  # vectors are of shape [2, 16]
        train_op = tfs.train.AdamAsyncOptimizer(0.01).minimize(loss)
    ```
    """
    if combiner not in _COMBINERS:
        raise ValueError(
            "combiner must be 'sum', 'mean', 'sqrtn' or None. Received: "
            f"combiner={combiner!r}"
        )
    if partition_strategy not in _STRATEGIES:
        raise ValueError(
            "partition_strategy must be 'mod' or 'div'. Received: "
            f"partition_strategy={partition_strategy!r}"
        )
    are_ragged = is_ragged(ids)
    if combiner is None and (are_ragged or weights is not None):
        raise ValueError(
            "Sparse and ragged ids, and weights, need a combiner. Received: "
            f"ids={ids!r}, weights={weights!r}, combiner=None"
        )
    parts = _parts(params)
    is_partitioned = not isinstance(params, list | tuple | tf.Variable)
    by_range = is_partitioned or partition_strategy == "div"
    sizes = _sizes(parts, by_range)
    splits = None
    with tf.name_scope(name):
        if are_ragged:
            ids = as_ragged(ids)
            splits, ids = tf.cast(ids.row_splits, tf.int64), ids.values
        ids = tf.convert_to_tensor(ids)
        if weights is not None:
            weights = flat_weights(weights, ids, splits, f"lookup {name!r}")
        num_rows = sum(sizes)
        rows, places = embedding_ops.embedding_rows(
            [ids],
            num_rows=num_rows,
            num_shards=len(parts),
            first_rows=[0],
            vocabulary_sizes=[num_rows],
            features=[name],
            tables=[name],
            shard_sizes=sizes if by_range else (),
            dtype=tf.int32 if max(sizes) <= tf.int32.max else tf.int64,
        )
        vectors = [
            _gather(part, asked, transfer_dtype)
            for part, asked in zip(parts, rows, strict=True)
        ]
        (result,) = embedding_ops.embedding_combine(
            vectors, places, [combiner], [splits], [weights]
        )
        return result


def _parts(params: Any) -> Sequence[Any]:
    if not isinstance(params, tf.Variable) and not hasattr(params, "__iter__"):
        raise ValueError(
            "params must be a variable, a PartitionedVariable or a list of variables. "
            "Tables that grow are layers of Keras alone: use "
            "tfs.keras.DistributedEmbedding with a tfs.keras.Dynamic, or hash ids into "
            f"a fixed number of rows. Received: params={params!r}"
        )
    parts = [params] if isinstance(params, tf.Variable) else list(params)
    for part in parts:
        if getattr(part, "shape", None) is None or not (
            part.shape.rank == 2 and part.shape.is_fully_defined()
        ):
            raise ValueError(
                "params must be variables of rank 2 whose shapes are known. Received: "
                f"{part!r}"
            )
    widths = {(part.shape.as_list()[1], part.dtype.base_dtype.name) for part in parts}
    if len(widths) != 1:
        raise ValueError(
            "params must be of one width and dtype. Received: parts of "
            f"{sorted(widths)}"
        )
    return parts


def _sizes(parts, by_range):
    # `shape[0]` is not a number after `tf.compat.v1.disable_v2_behavior`.
    sizes = [part.shape.as_list()[0] for part in parts]
    total = sum(sizes)
    turns = [(total - i + len(sizes) - 1) // len(sizes) for i in range(len(sizes))]
    if not by_range and sizes != turns:
        raise ValueError(
            "Parts whose rows take turns, with partition_strategy 'mod', must have "
            f"{turns} rows. Received: parts of {sizes}"
        )
    return sizes


def _gather(part, rows, transfer_dtype):
    with tf.device(part.device):
        # Reference variables have no handle.
        if part.dtype.base_dtype != part.dtype or not hasattr(part, "handle"):
            return tf.gather(part, rows)
        compat.tell_tapes(part)
        return embedding_ops.embedding_gather(
            part.handle,
            rows,
            shape=part.shape,
            dtype=part.dtype,
            transfer_dtype=transfer_dtype and tf.as_dtype(transfer_dtype),
        )
