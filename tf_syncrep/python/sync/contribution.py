"""What becomes of a gradient once the gate has answered: it is pushed and committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync.gradient_accumulators import NO_ROUND, GradientAccumulator


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
