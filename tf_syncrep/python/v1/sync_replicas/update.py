"""Builds what the chief applies: the averages of a round, for the inner optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import checkpoint_ops
from tf_syncrep.python.sync.gradients import flatten, identity
from tf_syncrep.python.v1.adagrad import AdagradOptimizer
from tf_syncrep.python.v1.adam_async import AdamAsyncOptimizer
from tf_syncrep.python.v1.ftrl import FtrlOptimizer
from tf_syncrep.python.v1.gradient_descent import GradientDescentOptimizer
from tf_syncrep.python.v1.momentum import MomentumOptimizer
from tf_syncrep.python.v1.variable_rows import is_written_by_rows

# Optimizers that write only those rows of a table that a sparse gradient names. This is
# not known of their subclasses.
_WRITING_ROWS_OF_GRADIENTS_ONLY = (
    AdagradOptimizer,
    AdamAsyncOptimizer,
    FtrlOptimizer,
    GradientDescentOptimizer,
    MomentumOptimizer,
    tf.compat.v1.train.AdagradOptimizer,
    tf.compat.v1.train.FtrlOptimizer,
    tf.compat.v1.train.GradientDescentOptimizer,
    tf.compat.v1.train.MomentumOptimizer,
    tf.compat.v1.train.RMSPropOptimizer,
)


def waits_for(optimizer: Any, averages) -> list[Any]:
    """Returns the ops for which an update waits besides its variable's gradient.

    TensorFlow's Adam decays the moments of all rows by an op that takes no gradient: it
    would run before there is a gradient, and once too often if none comes.
    """
    if type(optimizer) in _WRITING_ROWS_OF_GRADIENTS_ONLY or not any(
        isinstance(average, tf.IndexedSlices) for average in averages
    ):
        return []
    return flatten([average for average in averages if average is not None])


def kept_for_checkpoints(optimizer: Any, averages, variables, has_moving_averages):
    """Keeps the rows that an update will overwrite for a checkpoint in progress."""
    # Moving averages change all rows.
    by_rows = (
        type(optimizer) in _WRITING_ROWS_OF_GRADIENTS_ONLY and not has_moving_averages
    )
    kept = []
    for average, variable in zip(averages, variables, strict=True):
        if average is None or not is_written_by_rows(variable):
            kept.append(average)
            continue
        is_sparse = isinstance(average, tf.IndexedSlices)
        rows = average.indices if is_sparse and by_rows else None
        with tf.device(variable.device):
            if hasattr(variable, "handle"):
                first = checkpoint_ops.checkpoint_keep(variable.handle, rows)
            else:
                first = checkpoint_ops.ref_checkpoint_keep(variable, rows)
            with tf.control_dependencies([first]):
                kept.append(identity(average))
    return kept
