"""Rows of tables, and gradients of rows, that bring other tensors along."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_syncrep.python.keras.compat import graph_edges
from tf_syncrep.python.ops import row_message_ops

# Lookups, which return rows at the end of their outputs.
_LOOKUPS = frozenset({"Syncrep>EmbeddingGather", "Syncrep>TableFind"})
# It returns gradients of rows, a tensor for each part of a table.
_GRADIENT = "Syncrep>EmbeddingCombineGrad"


def is_of_lookup(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor has the rows that a lookup has found."""
    tensor = _origin(tensor)
    op = tensor.op
    return op.type in _LOOKUPS and tensor.value_index == len(op.outputs) - 1


def can_bring_others(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor has rows whose op can leave room in front of them."""
    has_rows = is_of_lookup(tensor) or _origin(tensor).op.type == _GRADIENT
    # The room is counted in rows.
    return has_rows and tensor.shape.rank == 2 and bool(tensor.shape[1])


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor, or the one that is passed on as this one after checks."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def pack(rows: tf.Tensor, others: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes one tensor of rows and others, and has the rows' op leave room for them."""
    head_rows = _num_head_rows(rows, others)
    origin, name = _origin(rows), "head_rows"
    op = origin.op
    if op.type == _GRADIENT:
        of_parts = op.get_attr(name) or [0] * len(op.outputs)
        of_parts[origin.value_index] = head_rows
        graph_edges.set_attribute(op, name, of_parts)
    else:
        graph_edges.set_attribute(op, name, head_rows)
    return row_message_ops.row_message(rows, others, head_rows=head_rows)


def unpack(
    message: tf.Tensor, rows: tf.Tensor, others: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Unpacks what `pack` has made of these; returns the rows, then the others."""
    rows, others = row_message_ops.row_message_parts(
        message, others, head_rows=_num_head_rows(rows, others)
    )
    return [rows, *others]


def _num_head_rows(rows: tf.Tensor, others: Sequence[tf.Tensor]) -> int:
    width = rows.shape[1]
    assert width is not None  # `can_bring_others` says so
    return row_message_ops.num_head_rows(others, width, rows.dtype)
