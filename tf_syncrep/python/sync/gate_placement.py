"""Chooses the task on which the gate of a synchronous training is placed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.sizes import num_bytes

# The job, the replica and the task.
_Task = tuple[str, int, int]


def gate_device(variables: Iterable[Any], fallback_device: str) -> str:
    """Chooses the gate's device: the task with most of what is trained.

    A gradient is pushed once the gate has admitted it, and counts once the gate has
    heard that it was pushed. If the gate is beside the variable, both messages stay
    within one task. So the gate is placed where most bytes are pushed, by the sizes of
    the variables. If no task has more than all others together, pushes to other tasks
    take as long anyway, and the gate is best placed where the update ends: with the
    global step, at `fallback_device`.

    Replicas with the same variables and devices get the same answer. A variable counts
    as empty if its size is unknown, or if its device names no task, as in a single
    process. Returns the first CPU of the task, in the form of the device that named the
    task; an empty string if nothing named one.
    """
    sizes: dict[_Task, int] = {}
    devices = {task_of(fallback_device): fallback_device}
    for variable in variables:
        task = task_of(variable.device)
        if task is not None:
            sizes[task] = sizes.get(task, 0) + num_bytes(variable)
            devices.setdefault(task, variable.device)
    total = sum(sizes.values())
    for task, size in sizes.items():
        if 2 * size > total:
            return cpu(devices[task])
    return cpu(fallback_device)


def names_task(device: str) -> bool:
    """Returns whether a device, or an empty string, names a task."""
    return task_of(device) is not None


def on_same_task(device: str, other: str) -> bool:
    """Returns whether two devices belong to one task."""
    task = task_of(device)
    return task is not None and task == task_of(other)


def cpu(device: str) -> str:
    """Returns the first CPU of a device's task, if the device is not empty.

    The gate has kernels only for CPUs, and tasks send and receive there.
    """
    if not device:
        return ""
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type="CPU", device_index=0).to_string()


def task_of(device: str) -> _Task | None:
    """Returns the job, the replica and the task that a device names."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.job is None or spec.task is None:
        return None
    return spec.job, spec.replica or 0, spec.task
