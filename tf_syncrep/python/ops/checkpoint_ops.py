"""The ops of checkpoints: each task writes its variables to files of its own.

A writer is on the task on which `checkpoint_writer` ran. `checkpoint_begin` sets the
moment of a checkpoint; a thread of the writer continues while variables are updated,
and `checkpoint_progress` tells how far it got. Tables and their slots are written by
rows. If the checkpoint is to show its one moment, rows must be announced by
`checkpoint_keep` before they are overwritten.

The Docs of the ops in `cc/ops` say what they do and take: a function of this module
that is not below is the op of its name. Those below take groups as lists of handles,
those of reference variables last (otherwise there is a `ValueError`); pieces as tuples
of the group, rows, first, stride, vocabulary and, for a table that grows, uses; and
None for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import op_library

_raw_ops: Any = op_library.load()


def __getattr__(name: str) -> Any:
    return op_library.function(name, ("checkpoint_",))


def checkpoint_begin(
    handle,
    prefix,
    token,
    base,
    groups: Sequence[Sequence[Any]],
    pieces: Sequence[tuple[int, ...]],
    piece_names: Sequence[str],
    wholes: Sequence[Any],
    whole_names: Sequence[str],
    tensors: Sequence[Any] = (),
    tensor_names: Sequence[str] = (),
    **attributes: Any,
):
    """Begins to write a checkpoint that shows this moment: Syncrep>CheckpointBegin."""
    return _raw_ops.syncrep_checkpoint_begin(
        handle,
        prefix,
        token,
        base,
        [variable for group in groups for variable in group],
        *_layout(groups, pieces, piece_names),
        list(wholes),
        _strings(whole_names),
        list(tensors),
        _strings(tensor_names),
        **attributes,
    )


def checkpoint_keep(variable, rows=None, name=None):
    """Keeps rows for a checkpoint that is being written: Syncrep>CheckpointKeep."""
    return _raw_ops.syncrep_checkpoint_keep(
        variable, _rows(rows), all=rows is None, name=name
    )


def checkpoint_restore(
    prefixes,
    groups,
    pieces,
    piece_names,
    wholes,
    whole_names,
    stored_rows=(),
    name=None,
):
    """Reads variables from a checkpoint: Syncrep>CheckpointRestore."""
    return _raw_ops.syncrep_checkpoint_restore(
        prefixes,
        [variable for group in groups for variable in group],
        *_layout(groups, pieces, piece_names),
        list(wholes),
        _strings(whole_names),
        _stored(stored_rows),
        name=name,
    )


def ref_checkpoint_begin(
    handle,
    prefix,
    token,
    base,
    groups,
    pieces,
    piece_names,
    tensors,
    tensor_names,
    **attributes: Any,
):
    """Accepts a checkpoint in a graph of `tf.compat.v1`: Syncrep>RefCheckpointBegin."""
    return _raw_ops.syncrep_ref_checkpoint_begin(
        handle,
        prefix,
        token,
        base,
        *_handles_and_references(groups),
        *_layout(groups, pieces, piece_names),
        [],
        _strings([]),
        list(tensors),
        _strings(tensor_names),
        **attributes,
    )


def ref_checkpoint_keep(variable, rows=None, name=None):
    """Is `checkpoint_keep` for a reference variable: Syncrep>RefCheckpointKeep."""
    return _raw_ops.syncrep_ref_checkpoint_keep(
        variable, _rows(rows), all=rows is None, name=name
    )


def ref_checkpoint_restore(
    prefixes, groups, pieces, piece_names, stored_rows=(), name=None
):
    """Is `checkpoint_restore` for a v1 graph: Syncrep>RefCheckpointRestore."""
    return _raw_ops.syncrep_ref_checkpoint_restore(
        prefixes,
        *_handles_and_references(groups),
        *_layout(groups, pieces, piece_names),
        [],
        _strings([]),
        _stored(stored_rows),
        name=name,
    )


def _rows(rows):
    return tf.zeros([0], tf.int64) if rows is None else rows


def _handles_and_references(groups):
    flat = [variable for group in groups for variable in group]
    handles = [variable for variable in flat if variable.dtype == tf.resource]
    references = flat[len(handles) :]
    if any(variable.dtype == tf.resource for variable in references):
        raise ValueError("groups of reference variables must come after the others")
    return handles, references


def _layout(groups, pieces, piece_names):
    return (
        tf.constant([len(group) for group in groups], tf.int64, [len(groups)]),
        tf.constant([_numbers(piece) for piece in pieces], tf.int64, [len(pieces), 6]),
        _strings(piece_names),
    )


def _stored(rows):
    return tf.constant(list(rows), tf.int64, [len(rows)])


def _numbers(piece):
    """Returns the numbers of a piece, with -1 if its table does not grow."""
    return [*piece, -1] if len(piece) == 5 else list(piece)


def _strings(names):
    return tf.constant(list(names), tf.string, [len(names)])
