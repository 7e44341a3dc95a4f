"""The ops of checkpoints: each task writes its variables to files of its own.

A writer is on the task on which `checkpoint_writer` ran. `checkpoint_begin` sets the
moment of a checkpoint; a thread of the writer continues while variables are updated,
and `checkpoint_progress` tells how far it got. Tables and their slots are written by
rows. If the checkpoint is to show its one moment, rows must be announced by
`checkpoint_keep` before they are overwritten.
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
        counted: whether it lives as long as its handles, instead of as long as its
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
    """Begins to write a checkpoint that shows this moment.

    Args:
        handle: handle of the writer.
        prefix: string, the prefix of the files.
        token: string, the name of this checkpoint for a later one that holds only
            changes; empty if there will be none.
        base: string, the token of the last checkpoint if this one is to hold only what
            has changed since; empty to hold all.
        groups: handles of variables with equally many rows, a table and its slots.
        pieces: the pieces of tables in the rows of the groups, in order: for each
            `(group, rows, first, stride, vocabulary)`. Row `k` of a piece is row `first
            + k * stride` of a table of `vocabulary` rows. A table that grows has one
            more number: the variable of the group that has the uses of its rows, int32
            of shape `[rows, 2]`, the second of which is 0 for a free row. Free rows are
            omitted from full checkpoints, too, which have the other rows in the form of
            checkpoints of changes.
        piece_names: for each piece a name for each variable of its group.
        wholes: handles of variables that are copied at once.
        whole_names: names of these variables.
        tensors: further tensors to save.
        tensor_names: names of these tensors.
        max_kept_bytes: how many bytes of rows may be kept that are overwritten before
            they were written; then updates wait.
        patience_secs: how long updates wait for files that make no progress, until the
            checkpoint is given up.
        max_bytes_per_sec: a limit to the speed of writing; 0 for no limit.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.FailedPreconditionError: another checkpoint is being written, or
            `base` is not the last one.
        tf.errors.InvalidArgumentError: pieces do not cover their groups, or variables
            do not form a group.
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
    """Writes the checkpoint that `ref_checkpoint_begin` has accepted.

    It runs until the checkpoint is written, since only a running step can hold
    reference variables. If the step is cancelled, for example because its session is
    closed, the checkpoint is given up. The op does not fail if files cannot be written:
    `checkpoint_progress` returns that error.

    Args:
        handle: handle of the writer.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.FailedPreconditionError: no checkpoint was accepted.
    """
    return op_library.load().syncrep_checkpoint_write(handle, name=name)


def checkpoint_progress(handle, name=None):
    """Returns how far the writing of a checkpoint has got.

    Args:
        handle: handle of the writer.
        name: name of the operation.

    Returns:
        done: bool, whether nothing is being written.
        code: int64, 0 or the status code of the error.
        message: string, the message of the error.
        bytes: int64, bytes that were written.
        rows: int64, rows of tables that were written.
        kept_bytes: int64, the most bytes of rows that were kept at one time.
    """
    return op_library.load().syncrep_checkpoint_progress(handle, name=name)


def checkpoint_cancel(handle, name=None):
    """Ends the writing of a checkpoint, and waits until it has ended.

    The writer then forgets the last checkpoint, which takes 8 bytes for each row: the
    next one will be full.

    Args:
        handle: handle of the writer.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.DeadlineExceededError: the files made no progress for 10 seconds, or
            for `patience_secs` if that is less.
    """
    return op_library.load().syncrep_checkpoint_cancel(handle, name=name)


def checkpoint_keep(variable, rows=None, name=None):
    """Keeps rows for a checkpoint that is being written, before they are overwritten.

    It does nothing if no checkpoint is being written.

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
        prefixes: string of shape `[n]`: the prefixes of a full checkpoint and of those
            with the later changes, in order.
        groups: see `checkpoint_begin`.
        pieces: see `checkpoint_begin`.
        piece_names: see `checkpoint_begin`.
        wholes: see `checkpoint_begin`; they are read from the last of the files.
        whole_names: see `checkpoint_begin`.
        name: name of the operation.

    Returns:
        int64, how many bytes were read.

    Raises:
        tf.errors.InvalidArgumentError: a variable has another shape or dtype in the
            checkpoint; nothing was written.
        tf.errors.NotFoundError: a variable is not in the checkpoint; nothing was
            written.
        tf.errors.DataLossError: a file is damaged; variables may have been written.
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

    This op sets the moment of the checkpoint; `checkpoint_write` writes it.

    Args:
        handle: see `checkpoint_begin`.
        prefix: see `checkpoint_begin`.
        token: see `checkpoint_begin`.
        base: see `checkpoint_begin`.
        groups: groups of handles, followed by groups of reference variables.
        pieces: see `checkpoint_begin`.
        piece_names: see `checkpoint_begin`.
        tensors: see `checkpoint_begin`; they are copied.
        tensor_names: see `checkpoint_begin`.
        max_kept_bytes: see `checkpoint_begin`.
        patience_secs: see `checkpoint_begin`.
        max_bytes_per_sec: see `checkpoint_begin`.
        owner: the name of the owner of these checkpoints, if variables outlive it.
            Writers of this task forget what they remember of the variables for another
            owner.
        name: name of the operation.

    Returns:
        The operation.

    Raises:
        ValueError: the groups are in another order.
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
    """Does the same as `checkpoint_keep`, with a reference variable.

    Args:
        variable: the first variable of a group.
        rows: see `checkpoint_keep`.
        name: name of the operation.

    Returns:
        The operation.
    """
    return op_library.load().syncrep_ref_checkpoint_keep(
        variable, _rows(rows), all=rows is None, name=name
    )


def ref_checkpoint_restore(prefixes, groups, pieces, piece_names, name=None):
    """Does the same as `checkpoint_restore`, in a graph of `tf.compat.v1`.

    Args:
        prefixes: see `checkpoint_restore`.
        groups: see `ref_checkpoint_begin`.
        pieces: see `checkpoint_begin`.
        piece_names: see `checkpoint_begin`.
        name: name of the operation.

    Returns:
        int64, how many bytes were read.

    Raises:
        ValueError: the groups are in another order.
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
        raise ValueError("groups of reference variables must come after the others")
    return handles, references


def _layout(groups, pieces, piece_names):
    return (
        tf.constant([len(group) for group in groups], tf.int64, [len(groups)]),
        tf.constant([_numbers(piece) for piece in pieces], tf.int64, [len(pieces), 6]),
        _strings(piece_names),
    )


def _numbers(piece):
    """The numbers of a piece, with -1 if its table does not grow."""
    return [*piece, -1] if len(piece) == 5 else list(piece)


def _strings(names):
    return tf.constant(list(names), tf.string, [len(names)])
