"""The ops of checkpoints: each task writes its variables to files of its own.

A writer lives on the task on which `checkpoint_writer` ran. `checkpoint_begin` is the
moment of a checkpoint; a thread of the writer goes on from there while variables are
updated, and `checkpoint_progress` tells how far it got. Tables and their slots are
written by rows; whoever overwrites rows says so first, by `checkpoint_keep`, if the
checkpoint is to be of its one moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import op_library


def checkpoint_writer(*, shared_name, counted=False, name=None):
    """Makes a writer, or finds it by its shared name.

    Args:
        shared_name: the writer's name on its task.
        counted: whether it lives as long as the handles of it, and not as long as its
            task.
        name: name of the operation.

    Returns:
        The handle, a resource tensor.
    """
    return op_library.load().syncrep_checkpoint_writer(
        shared_name=shared_name, counted=counted, name=name
    )


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
    *,
    max_kept_bytes: int,
    patience_secs: float,
    max_bytes_per_sec: float = 0.0,
    name=None,
):
    """Begins to write a checkpoint of this moment.

    Args:
        handle: of the writer.
        prefix: string, of the files.
        token: string, names this checkpoint for a later one that is to hold what has
            changed since; empty if there is to be none.
        base: string, the token of the last one if this is to hold what has changed
            since; empty for all.
        groups: handles of variables with equally many rows, a table and its slots.
        pieces: the tables in the rows of the groups, in their order: for each
            `(group, rows, first, stride, vocabulary)`. Row `k` of them is row
            `first + k * stride` of a table of `vocabulary` rows. Of a table that grows
            there is one number more: of the variable in the group that has the uses of
            its rows, int32 of shape `[rows, 2]`, of which the second is 0 where a row
            is free. Such rows are left out of a checkpoint of all, too, which has the
            others as one of changes has them.
        piece_names: for each piece a name for each variable of its group.
        wholes: handles of variables that are copied at once.
        whole_names: their names.
        tensors: what is to be saved as well.
        tensor_names: its names.
        max_kept_bytes: how much may be kept of rows that are overwritten before they
            were written; then updates wait.
        patience_secs: for how long, if the files take nothing, until the checkpoint
            is given up.
        max_bytes_per_sec: how fast to write; 0 for as fast as can be.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.FailedPreconditionError: one is being written, or `base` is not the
            last one that was.
        tf.errors.InvalidArgumentError: pieces that do not cover their groups, and
            variables that make no group.
    """
    return op_library.load().syncrep_checkpoint_begin(
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
        max_kept_bytes=max_kept_bytes,
        patience_secs=patience_secs,
        max_bytes_per_sec=max_bytes_per_sec,
        name=name,
    )


def checkpoint_write(handle, name=None):
    """Writes what `ref_checkpoint_begin` has accepted, and lasts as long as that.

    A step that runs is what holds reference variables. If it is cancelled, as by its
    session when that is closed, the checkpoint is given up. That files cannot be
    written is no error of this op: `checkpoint_progress` tells.

    Args:
        handle: of the writer.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.FailedPreconditionError: nothing was accepted.
    """
    return op_library.load().syncrep_checkpoint_write(handle, name=name)


def checkpoint_progress(handle, name=None):
    """Tells how far the writing of a checkpoint got.

    Args:
        handle: of the writer.
        name: name of the operation.

    Returns:
        done: bool, whether nothing is being written.
        code: int64, 0, or what went wrong, as a status of TensorFlow.
        message: string, of what went wrong.
        bytes: int64, bytes that were written.
        rows: int64, rows of tables that were written.
        kept_bytes: int64, bytes that were kept aside at a time, at most.
    """
    return op_library.load().syncrep_checkpoint_progress(handle, name=name)


def checkpoint_cancel(handle, name=None):
    """Ends the writing of a checkpoint, and waits until it has ended.

    The writer then forgets what it knows of the last one, 8 bytes for each row: the
    next one is full.

    Args:
        handle: of the writer.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.DeadlineExceededError: the files took nothing for 10 seconds, or
            `patience_secs` if that is less.
    """
    return op_library.load().syncrep_checkpoint_cancel(handle, name=name)


def checkpoint_keep(variable, rows=None, name=None):
    """Keeps rows for a checkpoint that is being written, before they are overwritten.

    Does nothing where none is.

    Args:
        variable: handle of the first variable of a group.
        rows: int32 or int64 of any shape, which rows; None for all.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.
    """
    return op_library.load().syncrep_checkpoint_keep(
        variable, _rows(rows), all=rows is None, name=name
    )


def checkpoint_restore(
    prefixes, groups, pieces, piece_names, wholes, whole_names, name=None
):
    """Reads variables from a checkpoint, however many tasks have written it.

    Args:
        prefixes: string of shape `[n]`, of the files: a full checkpoint, and those that
            hold what has changed since, in order.
        groups: as `checkpoint_begin` takes them.
        pieces: as there.
        piece_names: as there.
        wholes: as there; they are read from the last of the files.
        whole_names: as there.
        name: name of the operation.

    Returns:
        int64, how many bytes were read.

    Raises:
        tf.errors.InvalidArgumentError: a variable of another shape or dtype than in
            the checkpoint; nothing was written.
        tf.errors.NotFoundError: one that is not there; nothing was written.
        tf.errors.DataLossError: what is damaged; variables may have been written.
    """
    return op_library.load().syncrep_checkpoint_restore(
        prefixes,
        [variable for group in groups for variable in group],
        *_layout(groups, pieces, piece_names),
        list(wholes),
        _strings(whole_names),
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
    *,
    max_kept_bytes,
    patience_secs,
    max_bytes_per_sec=0.0,
    owner="",
    name=None,
):
    """Accepts a checkpoint in a graph of `tf.compat.v1`.

    This is its moment; `checkpoint_write` writes it.

    Args:
        handle: as `checkpoint_begin` takes it.
        prefix: as there.
        token: as there.
        base: as there.
        groups: as there; and, behind them, groups of reference variables as they are.
        pieces: as there.
        piece_names: as there.
        tensors: as there; they are copied.
        tensor_names: as there.
        max_kept_bytes: as there.
        patience_secs: as there.
        max_bytes_per_sec: as there.
        owner: names who writes, where variables outlive that. What writers of this task
            remember of these variables for another owner, they forget: it was lost.
        name: name of the operation.

    Returns:
        The operation.

    Raises:
        ValueError: groups in another order.
    """
    return op_library.load().syncrep_ref_checkpoint_begin(
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
        max_kept_bytes=max_kept_bytes,
        patience_secs=patience_secs,
        max_bytes_per_sec=max_bytes_per_sec,
        owner=owner,
        name=name,
    )


def ref_checkpoint_keep(variable, rows=None, name=None):
    """Does as `checkpoint_keep`, with a reference variable.

    Args:
        variable: the first variable of a group.
        rows: as there.
        name: name of the operation.

    Returns:
        The operation.
    """
    return op_library.load().syncrep_ref_checkpoint_keep(
        variable, _rows(rows), all=rows is None, name=name
    )


def ref_checkpoint_restore(prefixes, groups, pieces, piece_names, name=None):
    """Does as `checkpoint_restore`, in a graph of `tf.compat.v1`.

    Args:
        prefixes: as there.
        groups: as `ref_checkpoint_begin` takes them.
        pieces: as there.
        piece_names: as there.
        name: name of the operation.

    Returns:
        int64, how many bytes were read.

    Raises:
        ValueError: groups in another order.
    """
    return op_library.load().syncrep_ref_checkpoint_restore(
        prefixes,
        *_handles_and_references(groups),
        *_layout(groups, pieces, piece_names),
        [],
        _strings([]),
        name=name,
    )


def _rows(rows):
    return tf.zeros([0], tf.int64) if rows is None else rows


def _handles_and_references(groups):
    flat = [variable for group in groups for variable in group]
    handles = [variable for variable in flat if variable.dtype == tf.resource]
    references = flat[len(handles) :]
    if any(variable.dtype == tf.resource for variable in references):
        raise ValueError("groups of reference variables must come behind the others")
    return handles, references


def _layout(groups, pieces, piece_names):
    return (
        tf.constant([len(group) for group in groups], tf.int64, [len(groups)]),
        tf.constant([_numbers(piece) for piece in pieces], tf.int64, [len(pieces), 6]),
        _strings(piece_names),
    )


def _numbers(piece):
    """Of a piece, with -1 for one that does not grow."""
    return [*piece, -1] if len(piece) == 5 else list(piece)


def _strings(names):
    return tf.constant(list(names), tf.string, [len(names)])
