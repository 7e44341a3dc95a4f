r"""Accumulators of gradients, as ops.

An accumulator is a resource on one task that collects the gradients of one variable
until somebody takes them, reduced to one gradient. Dense gradients are tensors of the
variable's shape; sparse ones are rows and their indices, as in `tf.IndexedSlices`.

**Modes.** A number comes with each gradient. The accumulator's `mode` decides what it
means.

- `"STEP"`: the step at which the gradient was computed. The gradient is accepted if the
  step is not below the accumulator's own step, which begins at 0. A take waits for
  enough gradients, takes all that are held, and advances the step by one. This is what
  TensorFlow's conditional accumulators do.
- `"ROUND"`: the round that the gradient belongs to. The accumulator holds one round; an
  older gradient is dropped, and a newer one replaces all that are held. A take asks for
  the gradients of one round, all of which must have arrived. So accumulators on many
  tasks need not be reset together.

**Reduction.** `"SUM"` is the sum, `"MEAN"` the sum divided by the number of gradients.
For sparse gradients `"MEAN"` divides each row by the number of gradients that contain
it, which is what TensorFlow's accumulator does, and `"CMEAN"` by the number of all
gradients, which is what the mean of dense gradients does.

**dtypes.** half, bfloat16, float32 or float64. Half and bfloat16 are summed in float32
and rounded once, at the end.

**Order.** Gradients are summed in the order in which they arrive, and rows that occur
several times in one gradient in the order of their occurrence. The result does
not depend, in any bit, on the number of threads that compute it.

**Cost.** The time of a push depends on the size of its gradient, however many were
pushed before. A take is linear in all that was pushed. A gradient that nobody else
holds is kept as it is; others are copied. When an accumulator holds more than 64 MiB of
sparse gradients, and four times as many rows as were distinct at the last merge or
take, a push merges them, and takes longer.

**Errors.** `tf.errors.InvalidArgumentError` for a gradient of another shape or dtype,
an index that is negative or out of range, an argument that is not a scalar, or a
shared name that is in use for an accumulator with other attributes. A gradient
that is refused with an error changes nothing.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_syncrep.python.ops import op_library

__all__ = [
    "AccumulatorStats",
    "accumulator_apply_dense",
    "accumulator_apply_sparse",
    "accumulator_num_accumulated",
    "accumulator_set_global_step",
    "accumulator_stats",
    "accumulator_take_dense",
    "accumulator_take_round_dense",
    "accumulator_take_round_sparse",
    "accumulator_take_sparse",
    "dense_accumulator",
    "sparse_accumulator",
]

_raw_ops: Any = op_library.load()


class AccumulatorStats(NamedTuple):
    """What has become of an accumulator's gradients since it was made.

    At any time `pushed = accepted + stale` and `accepted = taken + voided + held`.
    Gradients that were refused with an error are not counted.

    Attributes:
        step: the accumulator's step, or its round.
        held: gradients that are held now.
        pushed: gradients that arrived.
        accepted: gradients that were not dropped on arrival.
        stale: gradients dropped on arrival, being too old.
        voided: gradients discarded later, because of another round.
        taken: gradients that were reduced and taken.
        takes: how many takes got gradients.
        bytes: bytes of memory that the held gradients take now. All accumulators of a
            process merge their sparse gradients when these are more than
            TF_SYNCREP_UNMERGED_GRADIENTS_MB together. It is read from the environment
            when the process begins, and 1024 by default.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(tf.float32, [], counted=True)
    >>> for step in (0, 0, -1):
    ...     _ = tfs.ops.accumulator_apply_dense(accumulator, step, 1.0)
    >>> stats = tfs.ops.accumulator_stats(accumulator)
    >>> int(stats.pushed), int(stats.held), int(stats.stale)
    (3, 2, 1)
    """

    step: Any
    held: Any
    pushed: Any
    accepted: Any
    stale: Any
    voided: Any
    taken: Any
    takes: Any
    bytes: Any


def dense_accumulator(
    dtype: Any,
    shape: Any = None,
    *,
    reduction_type: str = "MEAN",
    mode: str = "STEP",
    container: str = "",
    shared_name: str = "",
    counted: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Makes, or finds by its shared name, an accumulator of dense gradients.

    Args:
        dtype: dtype of the gradients: half, bfloat16, float32 or float64.
        shape: shape of the gradients, as far as it is known; None if nothing is. All
            gradients that are held at one time have the same shape.
        reduction_type: `"MEAN"` or `"SUM"`.
        mode: `"STEP"` or `"ROUND"`.
        container: container of the resource; the default one if empty.
        shared_name: name by which others find the same accumulator on the same
            task. Without one it belongs to this op alone.
        counted: whether it lives as long as its handle, instead of as long as its task.
            Without a shared name each call then makes a new one.
        name: name of the op.

    Returns:
        The accumulator's handle, a scalar resource.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(tf.float32, [2], counted=True)
    >>> for gradient in ([1.0, 2.0], [3.0, 4.0]):
    ...     _ = tfs.ops.accumulator_apply_dense(accumulator, 0, gradient)
    >>> tfs.ops.accumulator_take_dense(accumulator, 2, tf.float32).numpy().tolist()
    [2.0, 3.0]
    """
    return _raw_ops.syncrep_dense_accumulator(
        dtype=dtype,
        shape=shape,
        reduction_type=reduction_type,
        mode=mode,
        container=container,
        shared_name=shared_name,
        counted=bool(counted),
        name=name,
    )


def sparse_accumulator(
    dtype: Any,
    shape: Any = None,
    *,
    reduction_type: str = "MEAN",
    mode: str = "STEP",
    container: str = "",
    shared_name: str = "",
    counted: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Makes, or finds by its shared name, an accumulator of sparse gradients.

    The arguments are those of `dense_accumulator`, with two differences: `shape` is
    that of the variable, whose first dimension bounds the indices, and None or `[]` if
    nothing is known; and `reduction_type` may be `"CMEAN"`, too.

    Returns:
        The accumulator's handle, a scalar resource.

    Example:
    >>> accumulator = tfs.ops.sparse_accumulator(tf.float32, [9, 2], counted=True)
    >>> _ = tfs.ops.accumulator_apply_sparse(accumulator, 0, [7, 4], [[1.0, 1.0]] * 2)
    >>> _ = tfs.ops.accumulator_apply_sparse(accumulator, 0, [7], [[3.0, 3.0]])
    >>> mean = tfs.ops.accumulator_take_sparse(accumulator, 2, tf.float32)
    >>> mean.indices.numpy().tolist(), mean.values.numpy().tolist()
    ([4, 7], [[1.0, 1.0], [2.0, 2.0]])
    """
    return _raw_ops.syncrep_sparse_accumulator(
        dtype=dtype,
        shape=shape,
        reduction_type=reduction_type,
        mode=mode,
        container=container,
        shared_name=shared_name,
        counted=bool(counted),
        name=name,
    )


def accumulator_apply_dense(
    handle: Any, local_step: Any, gradient: Any, name: str | None = None
) -> tf.Tensor:
    """Offers a dense gradient to an accumulator.

    Args:
        handle: handle of a dense accumulator.
        local_step: int64 scalar: the gradient's step, or its round.
        gradient: the gradient.
        name: name of the op.

    Returns:
        Boolean scalar: False if the gradient was dropped, being too old.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(tf.float32, [2], counted=True)
    >>> tfs.ops.accumulator_set_global_step(accumulator, 7)
    >>> bool(tfs.ops.accumulator_apply_dense(accumulator, 7, [1.0, 2.0]))
    True
    >>> bool(tfs.ops.accumulator_apply_dense(accumulator, 6, [1.0, 2.0]))
    False
    """
    return _raw_ops.syncrep_accumulator_apply_dense(
        handle=handle, local_step=local_step, gradient=gradient, name=name
    )


def accumulator_apply_sparse(
    handle: Any,
    local_step: Any,
    gradient_indices: Any,
    gradient_values: Any,
    gradient_shape: Any = None,
    name: str | None = None,
) -> tf.Tensor:
    """Offers a sparse gradient to an accumulator.

    Args:
        handle: handle of a sparse accumulator.
        local_step: int64 scalar: the gradient's step, or its round.
        gradient_indices: int32 or int64 of shape `[n]`: the row of the variable to
            which each row of `gradient_values` belongs, in any order; rows may repeat.
        gradient_values: the rows, of shape `[n] + shape[1:]`.
        gradient_shape: int64 vector: the shape of the variable, to be checked; or None.
        name: name of the op.

    Returns:
        Boolean scalar: False if the gradient was dropped, being too old.

    Example:
    >>> accumulator = tfs.ops.sparse_accumulator(tf.float32, [9, 2], counted=True)
    >>> bool(tfs.ops.accumulator_apply_sparse(accumulator, 0, [4], [[1.0, 2.0]]))
    True
    """
    return _raw_ops.syncrep_accumulator_apply_sparse(
        handle=handle,
        local_step=local_step,
        gradient_indices=gradient_indices,
        gradient_values=gradient_values,
        gradient_shape=tf.zeros([0], tf.int64)
        if gradient_shape is None
        else gradient_shape,
        has_known_shape=gradient_shape is not None,
        name=name,
    )


def accumulator_take_dense(
    handle: Any, num_required: Any, dtype: Any, name: str | None = None
) -> tf.Tensor:
    """Waits for enough dense gradients, then takes all that are held.

    Takes are served in order. One ends with `tf.errors.CancelledError` if its session,
    function call or step ends first.

    Args:
        handle: handle of a dense accumulator with mode `"STEP"`.
        num_required: int32 scalar, at least 1: how many gradients to wait for.
        dtype: dtype of the gradients.
        name: name of the op.

    Returns:
        The reduced gradient.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(tf.float32, [], counted=True)
    >>> _ = tfs.ops.accumulator_apply_dense(accumulator, 0, 3.0)
    >>> _ = tfs.ops.accumulator_apply_dense(accumulator, 0, 5.0)
    >>> float(tfs.ops.accumulator_take_dense(accumulator, 2, tf.float32))
    4.0
    """
    return _raw_ops.syncrep_accumulator_take_dense(
        handle=handle, num_required=num_required, dtype=dtype, name=name
    )


def accumulator_take_sparse(
    handle: Any, num_required: Any, dtype: Any, name: str | None = None
) -> Any:
    """Waits for enough sparse gradients, then takes all that are held.

    It is the same as `accumulator_take_dense`, but for sparse accumulators.

    Returns:
        Named tuple `indices` (int64, ascending, each row once), `values`, and `shape`
        (int64, with -1 for its first dimension if the accumulator does not know it).

    Example:
    >>> accumulator = tfs.ops.sparse_accumulator(tf.float32, [9, 1], counted=True)
    >>> _ = tfs.ops.accumulator_apply_sparse(accumulator, 0, [8, 2, 8], [[1.0]] * 3)
    >>> mean = tfs.ops.accumulator_take_sparse(accumulator, 1, tf.float32)
    >>> mean.indices.numpy().tolist(), mean.values.numpy().tolist()
    ([2, 8], [[1.0], [2.0]])
    """
    return _raw_ops.syncrep_accumulator_take_sparse(
        handle=handle, num_required=num_required, dtype=dtype, name=name
    )


def accumulator_take_round_dense(
    handle: Any, round: Any, num_gradients: Any, dtype: Any, name: str | None = None
) -> tf.Tensor:
    """Takes the dense gradients of a round, all of which must have arrived.

    Gradients of this round and of older ones that arrive later are dropped.

    Args:
        handle: handle of a dense accumulator with mode `"ROUND"`.
        round: int64 scalar: the round.
        num_gradients: int64 scalar, at least 1: how many gradients the round has.
        dtype: dtype of the gradients.
        name: name of the op.

    Returns:
        The reduced gradient.

    Raises:
        tf.errors.FailedPreconditionError: the accumulator holds another number of
            gradients, or another round. Nothing has changed.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(
    ...     tf.float32, [], mode="ROUND", counted=True
    ... )
    >>> for gradient in (3.0, 5.0):
    ...     _ = tfs.ops.accumulator_apply_dense(accumulator, 17, gradient)
    >>> float(tfs.ops.accumulator_take_round_dense(accumulator, 17, 2, tf.float32))
    4.0
    """
    return _raw_ops.syncrep_accumulator_take_round_dense(
        handle=handle,
        round=round,
        num_gradients=num_gradients,
        dtype=dtype,
        name=name,
    )


def accumulator_take_round_sparse(
    handle: Any, round: Any, num_gradients: Any, dtype: Any, name: str | None = None
) -> Any:
    """Takes the sparse gradients of a round, all of which must have arrived.

    It is the same as `accumulator_take_round_dense`, but for sparse accumulators.

    Returns:
        Named tuple `indices`, `values` and `shape`, as of `accumulator_take_sparse`.

    Example:
    >>> accumulator = tfs.ops.sparse_accumulator(
    ...     tf.float32, [9, 1], reduction_type="CMEAN", mode="ROUND", counted=True
    ... )
    >>> for row in (2, 8):
    ...     _ = tfs.ops.accumulator_apply_sparse(accumulator, 17, [row], [[1.0]])
    >>> mean = tfs.ops.accumulator_take_round_sparse(accumulator, 17, 2, tf.float32)
    >>> mean.indices.numpy().tolist(), mean.values.numpy().tolist()
    ([2, 8], [[0.5], [0.5]])
    """
    return _raw_ops.syncrep_accumulator_take_round_sparse(
        handle=handle,
        round=round,
        num_gradients=num_gradients,
        dtype=dtype,
        name=name,
    )


def accumulator_set_global_step(
    handle: Any, new_global_step: Any, name: str | None = None
) -> tf.Operation | None:
    """Sets an accumulator's step; what is held stays, as in TensorFlow's accumulator.

    In mode `"ROUND"` it sets the round and discards the gradients of another one. The
    step may go back.

    Args:
        handle: handle of an accumulator.
        new_global_step: int64 scalar: the step or round.
        name: name of the op.

    Returns:
        The op in a graph, None when executing eagerly.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(tf.float32, [], counted=True)
    >>> tfs.ops.accumulator_set_global_step(accumulator, 1)
    >>> bool(tfs.ops.accumulator_apply_dense(accumulator, 0, 3.0))
    False
    """
    return _raw_ops.syncrep_accumulator_set_global_step(
        handle=handle, new_global_step=new_global_step, name=name
    )


def accumulator_num_accumulated(handle: Any, name: str | None = None) -> tf.Tensor:
    """Returns how many gradients an accumulator holds.

    Args:
        handle: handle of an accumulator.
        name: name of the op.

    Returns:
        int32 scalar.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(tf.float32, [], counted=True)
    >>> _ = tfs.ops.accumulator_apply_dense(accumulator, 0, 3.0)
    >>> int(tfs.ops.accumulator_num_accumulated(accumulator))
    1
    """
    return _raw_ops.syncrep_accumulator_num_accumulated(handle=handle, name=name)


def accumulator_stats(handle: Any, name: str | None = None) -> AccumulatorStats:
    """Counts what has become of an accumulator's gradients since it was made.

    Args:
        handle: handle of an accumulator.
        name: name of the op.

    Returns:
        int64 scalars.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(tf.float32, [], counted=True)
    >>> _ = tfs.ops.accumulator_apply_dense(accumulator, 0, 3.0)
    >>> _ = tfs.ops.accumulator_take_dense(accumulator, 1, tf.float32)
    >>> stats = tfs.ops.accumulator_stats(accumulator)
    >>> int(stats.step), int(stats.taken), int(stats.held)
    (1, 1, 0)
    """
    return AccumulatorStats(*_raw_ops.syncrep_accumulator_stats(handle, name=name))
