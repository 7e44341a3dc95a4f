"""Messages that consist of rows and of other tensors, as ops.

Each tensor that goes from one task to another costs a call. Rows of a table are many
bytes, and their number is known only when they are there; other tensors of known shapes
can travel before them, in the same tensor. `embedding_gather` and
`embedding_combine_grad` leave room for these if their attribute `head_rows` says so.
Then the rows are not copied, neither where the message is made nor where it is taken
apart.

**Errors.** `tf.errors.InvalidArgumentError` for what is not a matrix, and for a head
that has no room for the other tensors or after which rows would not be aligned.
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
    """Counts the rows that tensors take up before rows.

    Args:
        others: the tensors, numbers or truth values of known shapes.
        width: the width of the rows, at least 1.
        dtype: their dtype.

    Returns:
        The least number that has room for the tensors, and keeps the rows aligned.
    """
    sizes = (x.shape.num_elements() * x.dtype.size for x in others)
    num_bytes = sum(_ALIGNMENT * math.ceil(size / _ALIGNMENT) for size in sizes)
    row_bytes = width * dtype.size
    aligned = math.lcm(row_bytes, _ALIGNMENT)
    return math.ceil(num_bytes / aligned) * aligned // row_bytes


def row_message(
    rows: tf.Tensor,
    others: Sequence[tf.Tensor],
    *,
    head_rows: int,
    name: str | None = None,
) -> tf.Tensor:
    """Puts tensors before rows.

    Args:
        rows: half, bfloat16, float32 or float64 of shape `[n, width]`.
        others: numbers or truth values, at least one.
        head_rows: how many rows they take up: what `num_head_rows` counts.
        name: name of the op.

    Returns:
        A tensor for `row_message_parts`, of the rows' dtype and of shape
        `[head_rows + n, width]`. The rows are copied, unless their op has left room for
        `head_rows` rows and nobody else uses them.
    """
    return _raw_ops.syncrep_row_message(rows, others, head_rows=head_rows, name=name)


def row_message_parts(
    message: tf.Tensor,
    like: Sequence[Any],
    *,
    head_rows: int,
    name: str | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Takes a message of `row_message` apart.

    Args:
        message: the message.
        like: gives the shape and dtype of each of the other tensors; for example the
            tensors themselves. Their values are not read.
        head_rows: as in `row_message`.
        name: name of the op.

    Returns:
        The rows, which share the message's memory, and copies of the other tensors.
    """
    parts = _raw_ops.syncrep_row_message_parts(
        message,
        Tothers=[x.dtype for x in like],
        shapes=[x.shape for x in like],
        head_rows=head_rows,
        name=name,
    )
    return parts.rows, list(parts.others)


tf.no_gradient("Syncrep>RowMessage")
tf.no_gradient("Syncrep>RowMessageParts")
