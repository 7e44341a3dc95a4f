"""On which task the gate of a synchronous training sits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

# Job, replica and task.
_Task = tuple[str, int, int]


def gate_device(variables: Iterable[Any], fallback_device: str) -> str:
    """Chooses where the gate is to be: with most of what is trained.

    A gradient is pushed once the gate has admitted it, and counts once the gate has
    heard that it was pushed. Where the gate is beside the variable, both are said
    within one task. So the gate goes where most is pushed, by the variables' size.
    Without a task that has more than all others together, pushes to others take as
    long, and the gate is best where the update ends: with the global step.

    Replicas whose variables and devices are alike get the same answer.

    Args:
        variables: what is trained, reference and resource variables and slices of
            partitioned ones: those that have a gradient. A size that is not known
            counts as none, and so does a variable whose device names no task, as in a
            single process.
        fallback_device: a device, or an empty string. The gate is there unless another
            task holds more than half of the bytes.

    Returns:
        The first CPU of the task, in the words of the device that named it; an empty
        string if nothing named any.
    """
    sizes: dict[_Task, int] = {}
    devices = {_task(fallback_device): fallback_device}
    for variable in variables:
        task = _task(variable.device)
        if task is not None:
            sizes[task] = sizes.get(task, 0) + _num_bytes(variable)
            devices.setdefault(task, variable.device)
    total = sum(sizes.values())
    for task, size in sizes.items():
        if 2 * size > total:
            return cpu(devices[task])
    return cpu(fallback_device)


def names_task(device: str) -> bool:
    """Says whether a device, or an empty string, names a task."""
    return _task(device) is not None


def on_same_task(device: str, other: str) -> bool:
    """Says whether two devices are of one task.

    Args:
        device: a device, or an empty string.
        other: the same.

    Returns:
        Whether both name a task, and the same one.
    """
    task = _task(device)
    return task is not None and task == _task(other)


def cpu(device: str) -> str:
    """Returns the first CPU of a device's task.

    The gate has no other kernels, and tasks send and receive there.

    Args:
        device: a device, or an empty string.

    Returns:
        That CPU, in the words of `device`; an empty string for an empty one.
    """
    if not device:
        return ""
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type="CPU", device_index=0).to_string()


def _task(device: str) -> _Task | None:
    spec = tf.DeviceSpec.from_string(device)
    if spec.job is None or spec.task is None:
        return None
    return spec.job, spec.replica or 0, spec.task


def _num_bytes(variable) -> int:
    return (variable.shape.num_elements() or 0) * variable.dtype.base_dtype.size
