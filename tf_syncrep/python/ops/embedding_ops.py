"""Lookups in tables that are split among shards, as ops.

A table is split by rows, and several tables of one width may be stacked: row `r` of a
table is then row `first_row + r` of the stack. Row `g` of the stack is row `g //
num_shards` of shard `g % num_shards`, so that popular rows are spread over all shards;
or each shard has a range of the rows.

A lookup of a batch has three kinds of ops. `embedding_rows` finds, where the batch is,
the distinct rows that are needed, shard by shard. `embedding_gather` reads those of one
shard, where the shard is. `embedding_combine`, where the batch is, gives each feature
its vectors, and combines those of each example. Its gradient sums the gradients of the
ids that name a row, so that the gradient for a shard names each row once, in ascending
order.

**Order.** Sums are in the order of features and ids. They do not depend, in any bit, on
the number of threads, nor on the number of shards.

**Errors.** `tf.errors.InvalidArgumentError` for an id that is not in its table, with
the feature, the table, its vocabulary, the id and its position; and for rows, places,
splits and weights that do not fit together.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import op_library

__all__ = [
    "are_embedding_rows",
    "embedding_combine",
    "embedding_combine_grad",
    "embedding_gather",
    "embedding_rows",
]

_raw_ops: Any = op_library.load()


def embedding_rows(
    ids: Sequence[tf.Tensor],
    *,
    num_rows: int,
    num_shards: int,
    first_rows: Sequence[int],
    vocabulary_sizes: Sequence[int],
    features: Sequence[str],
    tables: Sequence[str],
    shard_sizes: Sequence[int] = (),
    dtype: Any = tf.int32,
    name: str | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Finds the distinct rows that the ids of features name, shard by shard.

    Args:
        ids: for each feature its ids, int32 or int64 of any shape.
        num_rows: how many rows all tables have together.
        num_shards: how many shards there are.
        first_rows: for each feature, where its table begins.
        vocabulary_sizes: for each feature, how many rows its table has.
        features: for each feature its name, for error messages.
        tables: for each feature the name of its table, for error messages.
        shard_sizes: for each shard how many rows it has, the first rows being those of
            shard 0; empty if rows are dealt out to the shards in turn.
        dtype: dtype of the rows, `tf.int32` or `tf.int64`.
        name: name of the op.

    Returns:
        rows: for each shard a vector of `dtype`: its rows that are named, each once,
            ascending, with the numbers that they have in the shard.
        places: for each feature, int32 of the shape of its ids: the place of each id's
            row among the rows of all shards; those of shard 0 come first.

    Example:
    >>> rows, places = tfs.ops.embedding_rows(
    ...     [tf.constant([[4, 1], [4, 3]])], num_rows=6, num_shards=2,
    ...     first_rows=[0], vocabulary_sizes=[6], features=["word"], tables=["words"],
    ... )

    >>> [x.numpy().tolist() for x in rows]  # of 0, 2, 4 and of 1, 3, 5
    [[2], [0, 1]]
    >>> places[0].numpy().tolist()
    [[0, 1], [0, 2]]
    """
    result = _raw_ops.syncrep_embedding_rows(
        ids=ids,
        Trows=dtype,
        num_shards=num_shards,
        num_features=len(ids),
        num_rows=num_rows,
        shard_sizes=list(shard_sizes),
        first_rows=list(first_rows),
        vocabulary_sizes=list(vocabulary_sizes),
        features=list(features),
        tables=list(tables),
        name=name,
    )
    return list(result.rows), list(result.places)


def are_embedding_rows(rows: Any) -> bool:
    """Returns whether a tensor comes from an op that returns distinct rows."""
    if not tf.is_symbolic_tensor(rows):
        return False
    op = rows.op
    if op.type == "Syncrep>TableGradient":
        # They are the rows of the keys in a request, which may be made by hand.
        op = op.inputs[3].op
    return op.type in ("Syncrep>EmbeddingRows", "Syncrep>TableRequests")


def embedding_gather(
    table: tf.Tensor,
    rows: tf.Tensor,
    *,
    shape: Any,
    dtype: Any,
    transfer_dtype: Any = None,
    name: str | None = None,
) -> tf.Tensor:
    """Reads rows of a variable.

    The gradient is a `tf.IndexedSlices` of these rows, in the variable's dtype, which
    is made where this op is.

    Args:
        table: handle of a resource variable of rank 2.
        rows: int32 or int64 of shape `[n]`, rows of the variable.
        shape: shape of the variable.
        dtype: dtype of the variable.
        transfer_dtype: dtype of the result: that of the variable, which is the default,
            or half or bfloat16 for float32.
        name: name of the op.

    Returns:
        The rows, in the same order, of shape `[n, width]`.

    Example:
    >>> table = tf.Variable([[0.0, 0.0], [1.0, 10.0], [2.0, 20.0]])
    >>> rows = tfs.ops.embedding_gather(
    ...     table.handle, [2, 1], shape=table.shape, dtype=table.dtype
    ... )
    >>> rows.numpy().tolist()
    [[2.0, 20.0], [1.0, 10.0]]
    """
    return _raw_ops.syncrep_embedding_gather(
        table,
        rows,
        dtype=dtype,
        Tout=transfer_dtype or dtype,
        shape=shape,
        name=name,
    )


def embedding_combine(
    vectors: Sequence[tf.Tensor],
    places: Sequence[tf.Tensor],
    combiners: Sequence[str | None],
    row_splits: Sequence[tf.Tensor | None] | None = None,
    weights: Sequence[tf.Tensor | None] | None = None,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Arranges looked-up rows for the features whose ids named them.

    Args:
        vectors: for each shard its rows, of shape `[n, width]`: half, bfloat16, float32
            or float64.
        places: for each feature, int32: the place of each id's row among the rows of
            all shards. A vector with `row_splits`; otherwise of any shape, whose last
            axis is combined if there is a combiner.
        combiners: for each feature `"sum"`, `"mean"`, `"sqrtn"` or None: the sum of the
            rows, each times its weight; the sum divided by the sum of the weights; the
            sum divided by the root of the sum of squared weights; or one vector for
            each id. Without ids, or if the weights add up to 0, the result is 0.
        row_splits: for each feature None, or int64 of shape `[examples + 1]`: where the
            ids of each example begin, and where those of the last one end.
        weights: for each feature None, or float32 with a weight for each id. They get
            no gradient.
        name: name of the op.

    Returns:
        For each feature its vectors, with the places' shape without the combined axis +
        `[width]`; float64 for float64, float32 for all others.

    Example:
    >>> vectors = [tf.constant([[4.0]]), tf.constant([[1.0], [3.0]])]  # of two shards
    >>> places = [tf.constant([[0, 1], [0, 2]])]  # ids 4 and 1, ids 4 and 3

    >>> (means,) = tfs.ops.embedding_combine(vectors, places, ["mean"])
    >>> means.numpy().tolist()
    [[2.5], [3.5]]
    """
    return _raw_ops.syncrep_embedding_combine(
        vectors=vectors,
        places=places,
        row_splits=[x for x in row_splits or () if x is not None],
        weights=[x for x in weights or () if x is not None],
        Tsum=tf.float64 if vectors[0].dtype == tf.float64 else tf.float32,
        combiners=[combiner or "none" for combiner in combiners],
        is_ragged=_is_given(row_splits, places),
        is_weighted=_is_given(weights, places),
        name=name,
    )


def embedding_combine_grad(
    gradients: Sequence[tf.Tensor],
    vectors: Sequence[tf.Tensor],
    places: Sequence[tf.Tensor],
    combiners: Sequence[str | None],
    row_splits: Sequence[tf.Tensor | None] | None = None,
    weights: Sequence[tf.Tensor | None] | None = None,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Sums, row by row, the gradients of the results of `embedding_combine`.

    The arguments are those of `embedding_combine`, behind the gradient of each
    feature's vectors, of their shape and dtype. Of `vectors` only the shapes matter.

    Returns:
        For each shard the gradient of its rows, of their shape and dtype, summed in
        float64 for float64 and float32 for all others, and rounded once.

    Example:
    >>> vectors = [tf.constant([[4.0]]), tf.constant([[1.0], [3.0]])]  # of two shards
    >>> places = [tf.constant([[0, 1], [0, 2]])]  # ids 4 and 1, ids 4 and 3

    >>> gradients = [tf.constant([[1.0], [10.0]])]  # of the means
    >>> sums = tfs.ops.embedding_combine_grad(gradients, vectors, places, ["mean"])
    >>> [x.numpy().tolist() for x in sums]
    [[[5.5]], [[0.5], [5.0]]]
    """
    return _raw_ops.syncrep_embedding_combine_grad(
        gradients=gradients,
        vectors=vectors,
        places=places,
        row_splits=[x for x in row_splits or () if x is not None],
        weights=[x for x in weights or () if x is not None],
        combiners=[combiner or "none" for combiner in combiners],
        is_ragged=_is_given(row_splits, places),
        is_weighted=_is_given(weights, places),
        name=name,
    )


def _is_given(values, features):
    return [x is not None for x in values or [None] * len(features)]


tf.no_gradient("Syncrep>EmbeddingRows")


@tf.RegisterGradient("Syncrep>EmbeddingGather")
def _gradient_of_gather(op, gradient):
    rows = op.inputs[1]
    dtype, shape = op.get_attr("dtype"), op.get_attr("shape")
    # The sum has the narrow dtype in which it is sent; it is widened beside the
    # variable.
    with tf.device(op.outputs[0].device):
        values = tf.cast(gradient, dtype)
    size = [dim.size for dim in shape.dim] if hasattr(shape, "dim") else list(shape)
    return tf.IndexedSlices(values, rows, tf.constant(size, tf.int64)), None


@tf.RegisterGradient("Syncrep>EmbeddingCombine")
def _gradient_of_combine(op, *gradients):
    num_shards, num_features = op.get_attr("num_shards"), op.get_attr("num_features")
    num_ragged, num_weighted = op.get_attr("num_ragged"), op.get_attr("num_weighted")
    inputs = list(op.inputs)
    ends = [num_shards, num_shards + num_features]
    ends.append(ends[-1] + num_ragged)
    sums = _raw_ops.syncrep_embedding_combine_grad(
        gradients=gradients,
        vectors=inputs[: ends[0]],
        places=inputs[ends[0] : ends[1]],
        row_splits=inputs[ends[1] : ends[2]],
        weights=inputs[ends[2] :],
        combiners=[tf.compat.as_str(name) for name in op.get_attr("combiners")],
        is_ragged=op.get_attr("is_ragged"),
        is_weighted=op.get_attr("is_weighted"),
    )
    return [*sums, *(num_features + num_ragged + num_weighted) * [None]]
