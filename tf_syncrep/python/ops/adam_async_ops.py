r"""AdamAsync updates of one variable and its slots, as ops.

Four ops share one set of inputs: dense or sparse gradient, reference variables
(TensorFlow 1 graphs) or resource variables (everything else). Each call is one
step of Adam on `var`, with a pair of powers that belongs to `var` alone:

$$\alpha = lr \cdot \sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$$
$$m \leftarrow \beta_1 m + (1 - \beta_1) g$$
$$v \leftarrow \beta_2 v + (1 - \beta_2) g^2$$
$$var \leftarrow var - \alpha \, m / (\sqrt{v} + \epsilon)$$

where \\(\beta_1^t\\) and \\(\beta_2^t\\) are the values of `beta1_power` and
`beta2_power` when the call begins. They start at `beta1` and `beta2`, and are
multiplied by these at the end of the call. With `use_nesterov`, \\(m\\) in the last
line is \\(\beta_1 m + (1 - \beta_1) g\\).

A sparse call does the same to the rows named by `indices`, and leaves all other rows
and their slots alone. Rows that occur several times are summed first, in order of
occurrence, and moved once. A call without indices changes nothing, or only the powers
with `count_empty`. With `apply_sparse_rmsprop` the rows follow RMSProp instead, and the
powers are neither read nor advanced:

$$v \leftarrow \beta_2 v + (1 - \beta_2) g^2$$
$$m \leftarrow momentum \cdot m + lr \cdot g / \sqrt{v + \epsilon}$$
$$var \leftarrow var - m$$

**dtypes.** `var` and `grad` are half, bfloat16, float32 or float64. `m`, `v`, the
powers and the hyper-parameters are float64 where `var` is float64 and float32
otherwise (`slot_dtype`); all arithmetic is done in that type. Hyper-parameters
may be given as Python numbers.

**Many callers.** Any number of threads and workers may update one variable at
once; no update is lost or torn. Dense calls hold the variable exclusively,
sparse calls run side by side and are atomic for each row, powers are advanced
atomically. `use_locking=True` makes whole sparse calls exclusive too. The result
of one call does not depend, in any bit, on the number of threads that compute it.

**Errors.** Before anything is written, `tf.errors.InvalidArgumentError` names an
argument of the wrong shape, a pair of dtypes other than the above, or the first
index outside of `[0, rows of var)`; `tf.errors.FailedPreconditionError` names a
variable that is not initialized. Shapes that are known when a graph is built are
checked then, with a `ValueError`. With `validate_indices=False` indices are not
checked, and those that are not rows of `var` are ignored.

**GPUs.** Where the library has GPU kernels, variables may be on a GPU, all of one
call on the same. Hyper-parameters and indices are then read there, and only the
answer to whether an index is out of range comes back to the host; with
`validate_indices=False` nothing does.

**Reads.** After a sparse call, reads of a resource variable and its slots copy
(TensorFlow's copy-on-read mode), so that no tensor that was read before changes.

Sources: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, for
the rule, in the form at the end of its section 2; the AdamAsync optimizer of
DeepRec for the pair of powers of each variable, the RMSProp variant, and the
names and the order of the inputs; Dozat, "Incorporating Nesterov Momentum into
Adam", 2016, for the look-ahead.
"""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import op_library
from tf_syncrep.python.ops.stochastic_rounding import (
    StochasticRounding,
    rounding_inputs,
)
from tf_syncrep.python.ops.update_inputs import gradient, handles, scalars, slot_dtype

__all__ = [
    "apply_adam_async",
    "resource_apply_adam_async",
    "resource_sparse_apply_adam_async",
    "sparse_apply_adam_async",
]

_raw_ops: Any = op_library.load()


def __getattr__(name: str) -> Any:
    return op_library.function(name, ("resource_",))


def apply_adam_async(
    var: Any,
    m: Any,
    v: Any,
    beta1_power: Any,
    beta2_power: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: Any,
    use_locking: bool = False,
    use_nesterov: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Makes one dense AdamAsync step on a reference variable.

    It is the same as `resource_apply_adam_async`, but for reference variables, which
    live in TensorFlow 1 graphs only.

    Returns:
        The reference `var`, to be read after the step.

    Raises:
        RuntimeError: when executing eagerly.

    Example:
    >>> values = [[1.0]] * 3, [[0.0]] * 3, [[0.0]] * 3, [0.9], [0.999]
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     variables = [tf.compat.v1.Variable(x, use_resource=False) for x in values]
    ...     step = tfs.ops.apply_adam_async(
    ...         *variables, lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-8,
    ...         grad=[[1.0], [2.0], [-3.0]],
    ...     )
    ...     session.run(tf.compat.v1.global_variables_initializer())
    ...     print(session.run(step).ravel().round(3))
    [0.9 0.9 1.1]
    """
    dtype = slot_dtype(var.dtype)
    return _raw_ops.apply_adam_async(
        var,
        m,
        v,
        beta1_power,
        beta2_power,
        *scalars(dtype, lr, beta1, beta2, epsilon),
        grad,
        use_locking=bool(use_locking),
        use_nesterov=bool(use_nesterov),
        name=name,
    )


def sparse_apply_adam_async(
    var: Any,
    m: Any,
    v: Any,
    beta1_power: Any,
    beta2_power: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: Any,
    indices: Any,
    use_locking: bool = False,
    use_nesterov: bool = False,
    apply_sparse_rmsprop: bool = False,
    rmsprop_momentum: float = -1.0,
    validate_indices: bool = True,
    count_empty: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Makes one sparse AdamAsync step on rows of a reference variable.

    It is the same as `resource_sparse_apply_adam_async`, but for reference variables,
    which live in TensorFlow 1 graphs only.

    Returns:
        The reference `var`, to be read after the step.

    Raises:
        RuntimeError: when executing eagerly.

    Example:
    >>> values = [[1.0]] * 3, [[0.0]] * 3, [[0.0]] * 3, [0.9], [0.999]
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     variables = [tf.compat.v1.Variable(x, use_resource=False) for x in values]
    ...     step = tfs.ops.sparse_apply_adam_async(
    ...         *variables, lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-8,
    ...         grad=[[2.0], [-3.0]], indices=[0, 2],
    ...     )
    ...     session.run(tf.compat.v1.global_variables_initializer())
    ...     print(session.run(step).ravel().round(3))
    [0.9 1.  1.1]
    """
    dtype = slot_dtype(var.dtype)
    return _raw_ops.sparse_apply_adam_async(
        var,
        m,
        v,
        beta1_power,
        beta2_power,
        *scalars(dtype, lr, beta1, beta2, epsilon),
        grad,
        indices,
        use_locking=bool(use_locking),
        use_nesterov=bool(use_nesterov),
        apply_sparse_rmsprop=bool(apply_sparse_rmsprop),
        rmsprop_momentum=rmsprop_momentum,
        validate_indices=bool(validate_indices),
        count_empty=bool(count_empty),
        name=name,
    )


def resource_apply_adam_async(
    var: Any,
    m: Any,
    v: Any,
    beta1_power: Any,
    beta2_power: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: Any,
    use_locking: bool = False,
    use_nesterov: bool = False,
    name: str | None = None,
    *,
    rounding: StochasticRounding | None = None,
) -> tf.Operation | None:
    """Makes one dense AdamAsync step on a resource variable.

    The arguments are those of `resource_sparse_apply_adam_async`, with two differences:
    `var` may have any shape, and `grad` has the same one; and `use_locking` has no
    effect, since dense steps are exclusive in any case.

    Returns:
        The op in a graph, None when executing eagerly.

    Example:
    >>> values = [[1.0]] * 3, [[0.0]] * 3, [[0.0]] * 3, [0.9], [0.999]
    >>> var, *slots = [tf.Variable(x) for x in values]
    >>> tfs.ops.resource_apply_adam_async(
    ...     var, *slots, lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-8,
    ...     grad=[[1.0], [2.0], [-3.0]],
    ... )
    >>> print(var.numpy().ravel().round(3))
    [0.9 0.9 1.1]
    """
    grad = gradient(grad, var)
    dtype = slot_dtype(grad.dtype)
    apply, counted = _raw_ops.resource_apply_adam_async, {}
    if rounding is not None:
        apply = _raw_ops.syncrep_resource_apply_adam_async_rounded
        counted = rounding_inputs(rounding)
    return apply(
        *handles(var, m, v, beta1_power, beta2_power),
        *scalars(dtype, lr, beta1, beta2, epsilon),
        grad,
        use_locking=bool(use_locking),
        use_nesterov=bool(use_nesterov),
        name=name,
        **counted,
    )


def resource_sparse_apply_adam_async(
    var: Any,
    m: Any,
    v: Any,
    beta1_power: Any,
    beta2_power: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: Any,
    indices: Any,
    use_locking: bool = False,
    use_nesterov: bool = False,
    apply_sparse_rmsprop: bool = False,
    rmsprop_momentum: float = -1.0,
    validate_indices: bool = True,
    count_empty: bool = False,
    name: str | None = None,
    *,
    rounding: StochasticRounding | None = None,
) -> tf.Operation | None:
    """Makes one sparse AdamAsync step on rows of a resource variable.

    The module's documentation has the formula and what holds for all four ops. Each
    variable is given as a `tf.Variable` or as its handle.

    Args:
        var: variable of rank 1 or more.
        m: variable of var's shape: moving average of the gradient.
        v: variable of var's shape: moving average of its square.
        beta1_power: variable of one element: beta1 to the power t.
        beta2_power: variable of one element: beta2 to the power t.
        lr: scalar, the learning rate.
        beta1: scalar, decay of `m` per step.
        beta2: scalar, decay of `v` per step.
        epsilon: scalar, added to the root of `v` (under the root for RMSProp).
        grad: gradient of var's dtype and of shape `[n] + var.shape[1:]`.
        indices: int32 or int64 of shape `[n]`: the row of `var` that each row of
            `grad` belongs to, in any order, repeated at will.
        use_locking: make the whole step exclusive, not each row by itself.
        use_nesterov: look one gradient ahead; without effect on RMSProp.
        apply_sparse_rmsprop: follow RMSProp.
        rmsprop_momentum: RMSProp's momentum; negative stands for `beta1`, and 0
            is RMSProp without a moving average of the gradient.
        validate_indices: False to ignore indices that are not rows of `var`, and
            their rows of `grad`, instead of failing. The powers advance all the same.
        count_empty: True to advance the powers where there are no indices, too.
        name: name of the op.
        rounding: round a half or bfloat16 `var` stochastically; None for rounding to
            nearest. Its count advances in calls without indices with `count_empty`
            alone. Only for variables on CPUs.

    Returns:
        The op in a graph, None when executing eagerly.

    Example:
    >>> values = [[1.0]] * 3, [[0.0]] * 3, [[0.0]] * 3, [0.9], [0.999]
    >>> var, *slots = [tf.Variable(x) for x in values]
    >>> tfs.ops.resource_sparse_apply_adam_async(
    ...     var, *slots, lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-8,
    ...     grad=[[2.0], [-3.0]], indices=[0, 2],
    ... )
    >>> print(var.numpy().ravel().round(3))
    [0.9 1.  1.1]
    """
    grad = gradient(grad, var)
    dtype = slot_dtype(grad.dtype)
    apply, counted = _raw_ops.resource_sparse_apply_adam_async, {}
    if rounding is not None:
        apply = _raw_ops.syncrep_resource_sparse_apply_adam_async_rounded
        counted = rounding_inputs(rounding)
    return apply(
        *handles(var, m, v, beta1_power, beta2_power),
        *scalars(dtype, lr, beta1, beta2, epsilon),
        grad,
        indices,
        use_locking=bool(use_locking),
        use_nesterov=bool(use_nesterov),
        apply_sparse_rmsprop=bool(apply_sparse_rmsprop),
        rmsprop_momentum=rmsprop_momentum,
        validate_indices=bool(validate_indices),
        count_empty=bool(count_empty),
        name=name,
        **counted,
    )
