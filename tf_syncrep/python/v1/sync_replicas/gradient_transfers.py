"""Sends gradients from a replica to the tasks of their variables, in few calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_syncrep.python.base import messages
from tf_syncrep.python.base.sizes import num_bytes
from tf_syncrep.python.sync import gate_placement

# For a tensor up to this size the call that fetches it costs more than two copies.
_SMALL_BYTES = 64 * 1024
# Sending this many bytes takes about as long as a call: ops that wait for the combined
# message wait no longer than the saved call would have taken.
_SMALL_MESSAGE_BYTES = 256 * 1024
# The indices of rows of at least this size are at most an eighth of what is sent.
# Copying them twice, or sending them with the rows instead of before them, takes little
# time compared with the rows.
_LONG_ROW_BYTES = 64


def small_part(gradient) -> tf.Tensor | None:
    """Returns the part of a gradient that is worth sending together with others.

    That is a small dense gradient as a whole, and of a sparse one the indices, a
    vector, if they are small or its rows are long.
    """
    if isinstance(gradient, tf.IndexedSlices):
        indices = gradient.indices
        if indices.shape.rank == 1 and (_has_long_rows(gradient) or _is_small(indices)):
            return indices
        return None
    return gradient if _is_small(gradient) else None


def choose_for_message(
    gradients: Sequence, devices: Sequence[str], device: str
) -> list[int]:
    """Chooses gradients whose small parts are sent with another message to a task.

    It chooses all of them or none: a call for the rest would save nothing. `devices`:
    the device on which each gradient is needed; empty if it is not known.
    """
    chosen = {
        i: part
        for i, (gradient, wanted_on) in enumerate(zip(gradients, devices, strict=True))
        if gate_placement.on_same_task(wanted_on, device)
        and (part := _part_to_send(gradient, wanted_on)) is not None
    }
    size = sum(
        num_bytes(part)
        for i, part in chosen.items()
        if not _has_long_rows(gradients[i])
    )
    return list(chosen) if size <= _SMALL_MESSAGE_BYTES else []


def join_small(
    gradients: Sequence,
    devices: Sequence[str],
    arrived: Mapping[int, tf.Tensor] | None = None,
) -> list:
    """Sends the small parts of gradients for the same task as one tensor.

    Each tensor that leaves a task costs a call of the task that needs it, which takes
    both of them some tenths of a millisecond, however small the tensor is.

    `devices`: the device on which each gradient is needed; empty if it is not known.
    `arrived`: the small parts that are on their tasks already, by position, which
    replace those of their gradients.
    """
    there = dict(arrived or {})
    groups: dict[str, dict[int, tf.Tensor]] = {}
    for i, (gradient, device) in enumerate(zip(gradients, devices, strict=True)):
        part = _part_to_send(gradient, device)
        if part is not None and i not in there:
            groups.setdefault(gate_placement.cpu(device), {})[i] = part
    for cpu, parts in groups.items():
        if len(parts) > 1:
            message = messages.pack(list(parts.values()))
            with tf.device(cpu):
                unpacked = messages.unpack(message, list(parts.values()))
            there.update(zip(parts, unpacked, strict=True))
    return [
        _with_small_part(gradient, there[i]) if i in there else gradient
        for i, gradient in enumerate(gradients)
    ]


def _part_to_send(gradient, device: str) -> tf.Tensor | None:
    """Returns the small part, unless it is on the device's task or an unknown one."""
    part = small_part(gradient)
    if part is None or not gate_placement.names_task(device):
        return None
    devices = [part.device]
    if tf.is_symbolic_tensor(part):
        # If an op there uses the tensor, as rows to gather, it is sent anyway.
        devices += [op.device for op in part.consumers()]
    is_there = any(gate_placement.on_same_task(x, device) for x in devices)
    return None if is_there else part


def _with_small_part(gradient, part: tf.Tensor):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values, part, gradient.dense_shape)
    return part


def _has_long_rows(gradient) -> bool:
    if not isinstance(gradient, tf.IndexedSlices):
        return False
    row = gradient.values.shape[1:]
    if not row.is_fully_defined():
        return False
    return num_bytes(tf.TensorSpec(row, gradient.dtype)) >= _LONG_ROW_BYTES


def _is_small(tensor) -> bool:
    if not tensor.shape.is_fully_defined():
        return False
    return num_bytes(tensor) <= _SMALL_BYTES
