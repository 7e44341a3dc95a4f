"""Keeps rows that an update overwrites for a checkpoint that is being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import is_table
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizer_slots import trainer_of
from tf_syncrep.python.keras.optimizers.rules.base_optimizer import BaseOptimizer
from tf_syncrep.python.keras.tables.stacked_tables import is_part
from tf_syncrep.python.ops import checkpoint_ops


def keep(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    """Builds ops that have to run before an update.

    They do nothing while no checkpoint is being written.

    `variables`: the variables, as Keras has them.
    """
    kept = []
    for gradient, variable in zip(gradients, variables, strict=True):
        native = compat.native(variable)
        if not (is_table(native) or is_part(native)):
            continue  # A checkpoint copies it at its moment.
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        by_rows = _writes_rows_of_gradients_only(trainer_of(optimizer, variable))
        rows = gradient.indices if is_sparse and by_rows else None
        with tf.device(native.device):
            kept.append(checkpoint_ops.checkpoint_keep(native.handle, rows))
    return kept


def _writes_rows_of_gradients_only(optimizer: Any) -> bool:
    """Returns whether an optimizer writes only the rows that a sparse gradient names.

    Keras' optimizers with moments let the moments of all rows decay.
    """
    if optimizer.weight_decay or optimizer.use_ema:
        return False
    keras = tf.keras.optimizers
    if type(optimizer) is keras.SGD:
        return not optimizer.momentum
    return isinstance(optimizer, BaseOptimizer) or type(optimizer) is keras.Adagrad
