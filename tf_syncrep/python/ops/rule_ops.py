r"""Updates of one variable and its slots by an optimizer's rule, as ops.

A rule says how one element of a variable moves, from its gradient, its slots and a few
numbers, of which the first is the learning rate \\(lr\\). With gradient \\(g\\):

`"sgd"`, without slots:

$$var \leftarrow var - lr \, g$$

`"momentum"`, with the slot `momentum`, here \\(m\\), and the number `momentum`; and
`"nesterov"`, of which the second line is different:

$$m \leftarrow momentum \cdot m - lr \, g$$
$$var \leftarrow var + m \quad \text{or} \quad
var \leftarrow var + momentum \cdot m - lr \, g$$

`"gradient_momentum"`, with the same slot and number, where the learning rate is outside
of the momentum; and `"gradient_nesterov"`, of which the second line is different:

$$m \leftarrow momentum \cdot m + g$$
$$var \leftarrow var - lr \, m \quad \text{or} \quad
var \leftarrow var - lr \, (g + momentum \cdot m)$$

`"adagrad"`, with the slot `accumulator`, \\(a\\):

$$a \leftarrow a + g^2$$
$$var \leftarrow var - lr \, g / \sqrt{a + \epsilon}$$

`"rowwise_adagrad"`, with an `accumulator` of one number for each row of the variable:

$$a \leftarrow a + \text{mean}(g^2)$$
$$var \leftarrow var - lr \, g / (\sqrt{a} + \epsilon)$$

If the divisor of either is 0, \\(var\\) stays as it is.

`"ftrl"`, with the slots `accumulator`, \\(a\\), and `linear`, \\(z\\), and with
\\(p = -lr\_power\\):

$$a' = a + g^2$$
$$z \leftarrow z + g + 2 \, l2\_shrinkage \cdot var - (a'^p - a^p) / lr \cdot var$$
$$var \leftarrow (\text{clip}(z, -l1, l1) - z) / (a'^p / lr + 2 \, l2 + \beta / lr)$$
$$a \leftarrow a'$$

If the divisor is 0, \\(var\\) becomes 0. If \\(lr\\) is 0, nothing changes.

**dtypes.** `var` and `grad` are half, bfloat16, float32 or float64. Slots and numbers
are float64 where `var` is float64 and float32 otherwise; all arithmetic is done in that
type.

**Many callers.** Any number of threads and workers may update one variable at once; no
update is lost or torn. Dense calls hold the variable exclusively, sparse calls run side
by side and are atomic for each row, or hold it exclusively, too, with `use_locking`.
The result of one call does not depend, in any bit, on the number of threads that
compute it.

**Errors.** Before anything is written, `tf.errors.InvalidArgumentError` names an
argument of the wrong shape, a pair of dtypes other than the above, or the first index
outside of `[0, rows of var)`; `tf.errors.FailedPreconditionError` names a variable that
is not initialized. Shapes that are known when a graph is built are checked then, with a
`ValueError`. The ops have CPU kernels alone.

**Reads.** After a sparse call, reads of the variable and its slots copy (TensorFlow's
copy-on-read mode), so that no tensor that was read before changes.

Sources: Keras, for `sgd`, `momentum`, `nesterov`, `adagrad` and `ftrl`; TensorFlow's
ApplyMomentum for `gradient_momentum` and `gradient_nesterov`; FBGEMM's
EXACT_ROWWISE_ADAGRAD for `rowwise_adagrad`; Duchi, Hazan and Singer, "Adaptive
Subgradient Methods", 2011; McMahan et al., "Ad Click Prediction: a View from the
Trenches", 2013; Sutskever et al., "On the importance of initialization and momentum in
deep learning", 2013.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_syncrep.python.ops import op_library
from tf_syncrep.python.ops.stochastic_rounding import (
    StochasticRounding,
    rounding_inputs,
)
from tf_syncrep.python.ops.update_inputs import gradient, handles, scalars, slot_dtype

__all__ = [
    "RULES",
    "Rule",
    "apply_rule",
    "resource_apply_rule",
    "resource_sparse_apply_rule",
    "sparse_apply_rule",
]

_raw_ops: Any = op_library.load()


class Rule(NamedTuple):
    """The slots and numbers of a rule.

    `numbers`: names of its numbers, of which the first is the learning rate.
    """

    slots: tuple[str, ...]
    numbers: tuple[str, ...]
    is_rowwise: bool = False

    def slot_shape(self, shape: Sequence[int]) -> list[int]:
        """Returns the shape of the slots of a variable."""
        return row_slot_shape(shape) if self.is_rowwise else list(shape)


def row_slot_shape(shape: Sequence[int]) -> list[int]:
    """Returns the shape of a slot with one number for each row."""
    return [*shape[:1], *([1] * len(shape[1:]))]


# The same as in cc/lib/rules.
RULES = {
    "adagrad": Rule(("accumulator",), ("lr", "epsilon")),
    "ftrl": Rule(
        ("accumulator", "linear"),
        ("lr", "lr_power", "l1", "l2", "l2_shrinkage", "beta"),
    ),
    "gradient_momentum": Rule(("momentum",), ("lr", "momentum")),
    "gradient_nesterov": Rule(("momentum",), ("lr", "momentum")),
    "momentum": Rule(("momentum",), ("lr", "momentum")),
    "nesterov": Rule(("momentum",), ("lr", "momentum")),
    "rowwise_adagrad": Rule(("accumulator",), ("lr", "epsilon"), is_rowwise=True),
    "sgd": Rule((), ("lr",)),
}


def apply_rule(
    rule: str,
    var: Any,
    slots: Mapping[str, Any],
    numbers: Mapping[str, Any],
    grad: Any,
    name: str | None = None,
) -> tf.Operation:
    """Makes one dense step of an optimizer's rule on a reference variable.

    The arguments are those of `resource_apply_rule`, but variables are reference
    variables, which live in TensorFlow 1 graphs only.

    Returns:
        The op.

    Raises:
        ValueError: there is no such rule, or it has other slots or numbers.
        RuntimeError: when executing eagerly.

    Example:
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     var = tf.compat.v1.Variable([[1.0]] * 3, use_resource=False)
    ...     step = tfs.ops.apply_rule(
    ...         "sgd", var, {}, {"lr": 0.1}, grad=[[1.0], [2.0], [-3.0]]
    ...     )
    ...     session.run(tf.compat.v1.global_variables_initializer())
    ...     session.run(step)
    ...     print(session.run(var).ravel().round(3))
    [0.9 0.8 1.3]
    """
    return _raw_ops.syncrep_apply_rule(
        **_operands(rule, var, slots, numbers, var.dtype, _references),
        grad=grad,
        name=name,
    )


def sparse_apply_rule(
    rule: str,
    var: Any,
    slots: Mapping[str, Any],
    numbers: Mapping[str, Any],
    grad: Any,
    indices: Any,
    use_locking: bool = False,
    name: str | None = None,
) -> tf.Operation:
    """Makes one sparse step of an optimizer's rule on rows of a reference variable.

    The arguments are those of `resource_sparse_apply_rule`, but variables are reference
    variables, which live in TensorFlow 1 graphs only.

    Returns:
        The op.

    Raises:
        ValueError: there is no such rule, or it has other slots or numbers.
        RuntimeError: when executing eagerly.

    Example:
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     var = tf.compat.v1.Variable([[1.0]] * 3, use_resource=False)
    ...     step = tfs.ops.sparse_apply_rule(
    ...         "sgd", var, {}, {"lr": 0.1}, grad=[[2.0], [-3.0]], indices=[0, 2]
    ...     )
    ...     session.run(tf.compat.v1.global_variables_initializer())
    ...     session.run(step)
    ...     print(session.run(var).ravel().round(3))
    [0.8 1.  1.3]
    """
    return _raw_ops.syncrep_sparse_apply_rule(
        **_operands(rule, var, slots, numbers, var.dtype, _references),
        grad=grad,
        indices=indices,
        use_locking=bool(use_locking),
        name=name,
    )


def resource_apply_rule(
    rule: str,
    var: Any,
    slots: Mapping[str, Any],
    numbers: Mapping[str, Any],
    grad: Any,
    name: str | None = None,
    *,
    rounding: StochasticRounding | None = None,
) -> tf.Operation | None:
    """Makes one dense step of an optimizer's rule on a resource variable.

    The arguments are those of `resource_sparse_apply_rule`, but `var` may have any
    shape, and `grad` has the same one.

    Returns:
        The op in a graph, None when executing eagerly.

    Raises:
        ValueError: there is no such rule, or it has other slots or numbers.

    Example:
    >>> var, accumulator = tf.Variable([[1.0]] * 3), tf.Variable([[0.0]] * 3)
    >>> tfs.ops.resource_apply_rule(
    ...     "adagrad", var, {"accumulator": accumulator},
    ...     {"lr": 0.1, "epsilon": 1e-7}, grad=[[1.0], [2.0], [-3.0]],
    ... )
    >>> print(var.numpy().ravel().round(3))
    [0.9 0.9 1.1]
    """
    grad = gradient(grad, var)
    return _raw_ops.syncrep_resource_apply_rule(
        **_operands(rule, var, slots, numbers, grad.dtype, handles),
        grad=grad,
        **_rounding(rounding),
        name=name,
    )


def resource_sparse_apply_rule(
    rule: str,
    var: Any,
    slots: Mapping[str, Any],
    numbers: Mapping[str, Any],
    grad: Any,
    indices: Any,
    use_locking: bool = False,
    name: str | None = None,
    *,
    rounding: StochasticRounding | None = None,
) -> tf.Operation | None:
    """Makes one sparse step of an optimizer's rule on rows of a resource variable.

    Rows that `indices` does not name stay as they are, slots included. A row that it
    names several times moves once, by the sum of its gradients. The module's
    documentation has the rules, and what holds for all of them. Each variable is given
    as a `tf.Variable` or as its handle.

    Args:
        rule: name of the rule: "adagrad", "ftrl", "gradient_momentum",
            "gradient_nesterov", "momentum", "nesterov", "rowwise_adagrad" or "sgd".
        var: variable of rank 1 or more.
        slots: the rule's slots by name: variables of var's shape, or, for a rowwise
            rule, of its first dimension, and 1 for every other.
        numbers: the rule's numbers by name, each a scalar; `lr` of FTRL is at least 0.
        grad: gradient of var's dtype and of shape `[n] + var.shape[1:]`.
        indices: int32 or int64 of shape `[n]`: the row of `var` that each row of
            `grad` belongs to, in any order, repeated at will.
        use_locking: make the whole step exclusive, not each row by itself.
        name: name of the op.
        rounding: round a half or bfloat16 `var` stochastically; None for rounding to
            nearest. Its count advances in calls without indices, too.

    Returns:
        The op in a graph, None when executing eagerly.

    Raises:
        ValueError: there is no such rule, or it has other slots or numbers.

    Example:
    >>> var, accumulator = tf.Variable([[1.0]] * 3), tf.Variable([[0.0]] * 3)
    >>> tfs.ops.resource_sparse_apply_rule(
    ...     "rowwise_adagrad", var, {"accumulator": accumulator},
    ...     {"lr": 0.1, "epsilon": 1e-8}, grad=[[2.0], [-3.0]], indices=[0, 2],
    ... )
    >>> print(var.numpy().ravel().round(3))
    [0.9 1.  1.1]
    """
    grad = gradient(grad, var)
    return _raw_ops.syncrep_resource_sparse_apply_rule(
        **_operands(rule, var, slots, numbers, grad.dtype, handles),
        grad=grad,
        indices=indices,
        use_locking=bool(use_locking),
        **_rounding(rounding),
        name=name,
    )


def _operands(rule, var, slots, numbers, dtype, as_inputs):
    """Returns the inputs of all ops, except those of the gradient.

    `as_inputs` returns for variables what the op takes: references, or handles.
    """
    if rule not in RULES:
        raise ValueError(f"`rule` must be one of {sorted(RULES)}. Received: {rule!r}")
    for what, given, names in (
        ("slots", slots, RULES[rule].slots),
        ("numbers", numbers, RULES[rule].numbers),
    ):
        if set(given) != set(names):
            raise ValueError(
                f"`{what}` of rule {rule!r} must be {list(names)}. "
                f"Received: {list(given)}"
            )
    var, *slots = as_inputs(var, *(slots[x] for x in RULES[rule].slots))
    return {
        "rule": rule,
        "var": var,
        "slots": slots,
        "numbers": scalars(
            slot_dtype(dtype), *(numbers[x] for x in RULES[rule].numbers)
        ),
    }


def _rounding(rounding):
    """Returns the list of counts, which may be empty, and the attributes."""
    if rounding is None:
        return {"rounding_count": []}
    inputs = rounding_inputs(rounding)
    return {**inputs, "rounding_count": [inputs["rounding_count"]]}


def _references(*variables):
    return variables
