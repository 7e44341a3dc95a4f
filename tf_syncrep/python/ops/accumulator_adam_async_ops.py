"""AdamAsync updates with the mean of an accumulator's gradients, as one op.

A take writes the mean of a round's gradients to memory, and an update reads it again.
This op applies each part of the mean while it is in the processor's cache. The result
has the same bits as that of the two ops; see `accumulator_ops` and `adam_async_ops`. It
is for dense gradients on CPUs: a sparse update would gain nothing, since it spends its
time on rows of the table, which are scattered over memory.
"""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import adam_async_ops, op_library

__all__ = ["accumulator_take_round_apply_adam_async_dense"]

_raw_ops: Any = op_library.load()


def accumulator_take_round_apply_adam_async_dense(
    var: Any,
    m: Any,
    v: Any,
    beta1_power: Any,
    beta2_power: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    handle: Any,
    round: Any,
    num_gradients: Any,
    dtype: Any,
    use_locking: bool = False,
    use_nesterov: bool = False,
    name: str | None = None,
) -> tf.Operation | None:
    """Takes the dense gradients of a round and makes an AdamAsync step of their mean.

    The arguments are those of `resource_apply_adam_async`, but in place of a gradient
    there are `handle`, the handle of a dense accumulator with mode `"ROUND"` on the
    variables' task, whose gradients have var's dtype and shape; `round`, an int64
    scalar; `num_gradients`, an int64 scalar of at least 1, which is how many gradients
    the round has; and `dtype`, that of the gradients and of `var`. With reduction_type
    `"SUM"` the step is made with the gradients' sum.

    Returns:
        The op in a graph, None when executing eagerly.

    Raises:
        tf.errors.FailedPreconditionError: the accumulator holds another number of
            gradients, or another round, or a variable is not initialized. After this
            and any other error, variables and accumulator are unchanged.

    Example:
    >>> accumulator = tfs.ops.dense_accumulator(
    ...     tf.float32, [2], mode="ROUND", counted=True
    ... )
    >>> for gradient in ([1.0, -2.0], [3.0, -4.0]):
    ...     _ = tfs.ops.accumulator_apply_dense(accumulator, 5, gradient)
    >>> values = [1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.9], [0.999]
    >>> var, *slots = [tf.Variable(x) for x in values]
    >>> tfs.ops.accumulator_take_round_apply_adam_async_dense(
    ...     var, *slots, lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-8,
    ...     handle=accumulator, round=5, num_gradients=2, dtype=tf.float32,
    ... )
    >>> print(var.numpy().round(3))
    [0.9 1.1]
    """
    dtype = tf.as_dtype(dtype)
    return _raw_ops.syncrep_accumulator_take_round_apply_adam_async_dense(
        *adam_async_ops.handles(var, m, v, beta1_power, beta2_power),
        *adam_async_ops.scalars(
            adam_async_ops.slot_dtype(dtype), lr, beta1, beta2, epsilon
        ),
        handle,
        round,
        num_gradients,
        T=dtype,
        use_locking=bool(use_locking),
        use_nesterov=bool(use_nesterov),
        name=name,
    )
