"""Setting tables beside a checkpoint, which has them as they were before or after."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.ops import checkpoint_ops

#: Held while tables are set, and while a checkpoint begins. The thread that makes
#: updates never takes it, since one that holds it may wait for a moment between two.
being_set = threading.RLock()


def check_numbers(name: str, values: np.ndarray) -> None:
    """Raises ValueError if values of a table cannot be cast to those of a variable."""
    try:
        dtype = tf.as_dtype(values.dtype)
    except TypeError:  # TensorFlow does not know it.
        dtype = tf.string
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise ValueError(
            f"Values of table {name!r} must be real numbers. Received: values of dtype "
            f"{values.dtype}"
        )


def copies_of(variable: Any) -> Sequence[Any]:
    """Returns the copies of a variable of which a strategy keeps several, or none."""
    copies = getattr(variable, "values", None)
    return copies if isinstance(copies, (tuple, list)) else ()


def keep(variable: Any, rows: Any = None) -> None:
    """Keeps what will be overwritten for a checkpoint that is being written.

    `rows`: int32 or int64 of shape `[n]`, the rows; None for all.
    """
    if copies := copies_of(variable):
        variable = copies[0]  # It is the one that a checkpoint has.
    device = tf.DeviceSpec.from_string(variable.device)
    # Only on CPUs rows are written one by one.
    if device.device_type == "CPU" and (rows is None or len(rows)):
        with tf.device(variable.device):
            checkpoint_ops.checkpoint_keep(variable.handle, rows)
