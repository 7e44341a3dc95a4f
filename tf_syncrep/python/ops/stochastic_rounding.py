"""Describes stochastic rounding to the ops that update a variable."""

import operator
from typing import Any, NamedTuple

__all__ = ["StochasticRounding"]


class StochasticRounding(NamedTuple):
    r"""How an update rounds a half or bfloat16 variable: up or down at random.

    Each new value is computed in float32. It becomes the neighbour above it with a
    probability that is its distance from the neighbour below, in units of the distance
    of both, and else the neighbour below: on average it stays what it was. So steps
    that are too small for the variable's dtype are not lost, as they are by rounding to
    the nearest number. A value that the dtype has is left as it is; one beyond the
    largest finite number is rounded to nearest. Variables of float32 and float64, and
    the slots of all variables, are not rounded.

    The random numbers are a hash of the seed, of the number of updates, of the row and
    of the element: an update gives the same bits on any number of threads, and the same
    updates in the same order give the same bits again. The op counts its calls
    atomically, so that updates of several workers draw different numbers.

    Attributes:
        count: int64 variable of one element, or its handle, beside the updated
            variable. It begins at 0, and each update takes 1 from it, so that the least
            of several counts is that of the most updates, as with powers of beta.
        seed: a number, for which variables draw different numbers.
        first_row: where the variable is part of a table, the row of the table that its
            first row is.
        row_stride: how many rows of the table its next row is further. With both, a
            sparse update draws the same numbers in any number of parts.

    Example:
    >>> var = tf.Variable(tf.ones([4, 1000], tf.bfloat16))
    >>> rounding = tfs.ops.StochasticRounding(tf.Variable([0], dtype=tf.int64))
    >>> tfs.ops.resource_sparse_apply_rule(
    ...     "sgd", var, {}, {"lr": 0.001}, grad=tf.ones([1, 1000], tf.bfloat16),
    ...     indices=[2], rounding=rounding,
    ... )
    >>> print(np.unique(var[2]))  # 1 - 0.001 is between them
    [0.996094 1]

    Source: Gupta et al., "Deep Learning with Limited Numerical Precision", 2015; the
    option of this name in FBGEMM.
    """

    count: Any
    seed: int = 0
    first_row: int = 0
    row_stride: int = 1


def rounding_inputs(rounding: StochasticRounding) -> dict[str, Any]:
    """Returns the count's handle and the attributes of an op."""
    count = rounding.count
    return {
        "rounding_count": getattr(count, "handle", count),
        "rounding_seed": operator.index(rounding.seed),
        "first_row": operator.index(rounding.first_row),
        "row_stride": operator.index(rounding.row_stride),
    }
