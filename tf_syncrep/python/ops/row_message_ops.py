"""Messages that consist of rows and of other tensors, as ops.

Each tensor that goes from one task to another costs a call. Rows of a table are many
bytes, and their number is known only when they are there; other tensors of known shapes
can travel before them, in the same tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import op_library

_raw_ops: Any = op_library.load()

# Rows, and each tensor before them, begin at a multiple of this many bytes.
_ALIGNMENT = 64


def num_head_rows(others: Sequence[Any], width: int, dtype: tf.DType) -> int:
    """Counts the rows that tensors take up before rows."""
    sizes = (x.shape.num_elements() * x.dtype.size for x in others)
    num_bytes = sum(_ALIGNMENT * math.ceil(size / _ALIGNMENT) for size in sizes)
    row_bytes = width * dtype.size
    aligned = math.lcm(row_bytes, _ALIGNMENT)
    return math.ceil(num_bytes / aligned) * aligned // row_bytes


def row_message(rows, others, *, head_rows, name=None):
    """Puts tensors before rows: Syncrep>RowMessage."""
    # The op fails if a tensor does not have the shape that its graph claims.
    return _raw_ops.syncrep_row_message(
        rows, others, shapes=[x.shape for x in others], head_rows=head_rows, name=name
    )


def row_message_parts(message, like, *, head_rows, name=None):
    """Takes a message of rows and other tensors apart: Syncrep>RowMessageParts."""
    # The shapes and dtypes of the other tensors, or of specs, are those of `like`.
    parts = _raw_ops.syncrep_row_message_parts(
        message,
        Tothers=[x.dtype for x in like],
        shapes=[x.shape for x in like],
        head_rows=head_rows,
        name=name,
    )
    return parts.rows, list(parts.others)
