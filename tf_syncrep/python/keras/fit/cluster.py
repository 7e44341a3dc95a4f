"""The cluster that this process is connected to."""

import tensorflow as tf


def num_tasks(job: str) -> int:
    """The number of tasks of a job, "worker" or "ps"; 0 without a cluster."""
    devices = tf.config.list_logical_devices("CPU")
    specs = [tf.DeviceSpec.from_string(device.name) for device in devices]
    return len({spec.task for spec in specs if spec.job == job})
