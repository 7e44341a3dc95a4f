"""Accumulators of one variable's gradients, round by round, and pushes to them.

They are on the variable's task. A push has the number of its round: an older one is
dropped, and a newer one replaces all held gradients. So nobody needs to clear a void
round.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_syncrep.python.ops import accumulator_ops, sync_gate_ops

# Rounds are positive, so gradients that are pushed for this one are dropped.
NO_ROUND = -1

_MODE = "ROUND"


class GradientKind(NamedTuple):
    """The properties that all gradients of a variable share."""

    dtype: tf.DType
    is_sparse: bool


def kind_of(gradient) -> GradientKind:
    """Returns the kind of a gradient."""
    return GradientKind(gradient.dtype, isinstance(gradient, tf.IndexedSlices))


class GradientAccumulator(abc.ABC):
    """Collects the gradients of one variable."""

    def __init__(self, variable, dtype: tf.DType):
        self._device = variable.device
        # The ops do not know the shape, but optimizers of Keras ask for it.
        self._shape = variable.shape
        self._dtype = dtype
        self._handle: tf.Tensor

    def reset(self):
        """Builds the operation that discards all held gradients."""
        with tf.device(self._device):
            return accumulator_ops.accumulator_set_global_step(
                self._handle, tf.constant(0, tf.int64)
            )

    @abc.abstractmethod
    def push(self, gradient, round_number: tf.Tensor) -> tf.Tensor:
        """Builds a push."""

    @abc.abstractmethod
    def take(self, quorum: tf.Tensor):
        """Builds the op that takes a round's reduced gradient.

        `quorum`: the round, and how many gradients it must have, int64 of shape (2,).
        It is one tensor because it may come from another task. The op raises
        `tf.errors.FailedPreconditionError` if the accumulator holds another round or
        another number of gradients.
        """


class _DenseAccumulator(GradientAccumulator):
    def __init__(self, dtype, variable, naming):
        super().__init__(variable, dtype)
        with tf.device(self._device):
            self._handle = accumulator_ops.dense_accumulator(
                dtype, variable.shape, mode=_MODE, **naming
            )

    def push(self, gradient, round_number):
        with tf.device(self._device):
            return accumulator_ops.accumulator_apply_dense(
                self._handle, round_number, gradient
            )

    def take(self, quorum):
        with tf.device(self._device):
            taken = accumulator_ops.accumulator_take_round_dense(
                self._handle, *tf.unstack(quorum), self._dtype
            )
        taken.set_shape(self._shape)
        return taken


class _SparseAccumulator(GradientAccumulator):
    def __init__(self, dtype, variable, naming, reduction_type: str):
        super().__init__(variable, dtype)
        with tf.device(self._device):
            self._handle = accumulator_ops.sparse_accumulator(
                dtype,
                variable.shape,
                reduction_type=reduction_type,
                mode=_MODE,
                **naming,
            )

    def push(self, gradient, round_number):
        with tf.device(self._device):
            return accumulator_ops.accumulator_apply_sparse(
                self._handle, round_number, gradient.indices, gradient.values
            )

    def take(self, quorum):
        with tf.device(self._device):
            taken = accumulator_ops.accumulator_take_round_sparse(
                self._handle, *tf.unstack(quorum), self._dtype
            )
        taken.values.set_shape([None, *self._shape[1:]])
        taken.indices.set_shape([None])
        shape = tf.constant(self._shape.as_list(), tf.int64)
        return tf.IndexedSlices(taken.values, taken.indices, shape)


def make_accumulator(
    kind: GradientKind,
    variable,
    *,
    shared_name: str | None,
    sparse_reduction_type: str,
) -> GradientAccumulator:
    """Makes the accumulator of a variable, on its device.

    `shared_name`: its name on its task, which then keeps it; None for one that lives as
    long as the returned object. Dense gradients are averaged.
    """
    naming = {"counted": True} if shared_name is None else {"shared_name": shared_name}
    if kind.is_sparse:
        return _SparseAccumulator(kind.dtype, variable, naming, sparse_reduction_type)
    return _DenseAccumulator(kind.dtype, variable, naming)


def push_and_commit(
    contribution: Sequence[Any],
    admitted: tf.Tensor,
    gradients: Sequence[Any],
    accumulators: Sequence[GradientAccumulator],
    device: str,
) -> tf.Tensor:
    """Pushes a worker's gradient, and tells the gate once all of it has arrived."""
    gate, generation, round_number, *worker = contribution
    with tf.device(device):
        # There is no cond around the pushes, so that gradients are sent meanwhile. If
        # they were not admitted, their round is one that does not exist, and they are
        # dropped.
        pushed_round = tf.where(admitted, round_number, NO_ROUND)
    pushes = [
        accumulator.push(gradient, pushed_round)
        for accumulator, gradient in zip(accumulators, gradients, strict=True)
    ]
    # The pushes are grouped by task first, so that each task reports once.
    with tf.device(device):
        pushed = tf.group(pushes)
    with tf.device(device), tf.control_dependencies([pushed]):
        return sync_gate_ops.sync_gate_commit(gate, generation, pushed_round, *worker)
