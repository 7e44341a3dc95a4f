"""How gradients get from a replica to the tasks of their variables, in few calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_syncrep.python.sync import gate_placement, messages

# A tensor up to this size costs more by the call that fetches it than by being copied
# twice.
_SMALL_BYTES = 64 * 1024
# To send as much as this takes about as long as a call: what waits for the message that
# it is sent with does not wait longer for it than the call has cost.
_SMALL_MESSAGE_BYTES = 256 * 1024


def choose_for_message(
    gradients: Sequence, devices: Sequence[str], device: str
) -> list[int]:
    """Chooses gradients that go to a task along with what it is told anyway.

    They are small dense ones. All of them or none: with one call for the rest nothing
    is saved.

    Args:
        gradients: tensors and `tf.IndexedSlices`, on this replica.
        devices: the device on which each is needed; empty where that is not known.
        device: a device of the task that is told something.

    Returns:
        The positions of those that are chosen.
    """
    chosen = [
        i
        for i, (gradient, wanted_on) in enumerate(zip(gradients, devices, strict=True))
        if gate_placement.on_same_task(wanted_on, device) and _is_small(gradient)
    ]
    size = sum(messages.num_bytes(gradients[i]) for i in chosen)
    return chosen if size <= _SMALL_MESSAGE_BYTES else []


def join_small(
    gradients: Sequence,
    devices: Sequence[str],
    arrived: Mapping[int, tf.Tensor] | None = None,
) -> list:
    """Sends small dense gradients for the same device as one tensor.

    Each tensor that leaves a task costs a call of the task that needs it, some tenths
    of a millisecond of both, however small it is.

    Args:
        gradients: tensors and `tf.IndexedSlices`, on this replica.
        devices: the device on which each is needed; empty where that is not known.
        arrived: by their positions, gradients that are on their tasks already.

    Returns:
        The same gradients. The small ones are on their devices, cut out of one tensor
        for each device and dtype; in place of those that have arrived is what did.
    """
    arrived = arrived or {}
    groups: dict[tuple[str, tf.DType], list[int]] = {}
    for i, (gradient, device) in enumerate(zip(gradients, devices, strict=True)):
        if device and i not in arrived and _is_small(gradient):
            groups.setdefault((device, gradient.dtype), []).append(i)
    result = [arrived.get(i, gradient) for i, gradient in enumerate(gradients)]
    for (device, _), members in groups.items():
        if len(members) > 1:
            joined = tf.concat([tf.reshape(gradients[i], [-1]) for i in members], 0)
            sizes = [gradients[i].shape.num_elements() for i in members]
            with tf.device(device):
                for i, part in zip(members, tf.split(joined, sizes), strict=True):
                    result[i] = tf.reshape(part, gradients[i].shape)
    return result


def _is_small(gradient) -> bool:
    if isinstance(gradient, tf.IndexedSlices) or not gradient.shape.is_fully_defined():
        return False
    return messages.num_bytes(gradient) <= _SMALL_BYTES
