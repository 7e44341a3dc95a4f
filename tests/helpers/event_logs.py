"""Event files for tests, written record by record."""

import pathlib
from collections.abc import Iterable, Mapping

import tensorflow as tf


def write(
    path: pathlib.Path,
    events: Iterable[tuple[float, Mapping[str, float]]],
    begin: float,
    as_tensors: bool = False,
) -> pathlib.Path:
    """Writes an event file of times and scalars by tag, and creates its folder.

    `begin` is the time of its creation. In TF 2's form, scalars are written as tensors.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        first = tf.compat.v1.Event(wall_time=begin, file_version="brain.Event:2")
        writer.write(first.SerializeToString())
        for step, (time, scalars) in enumerate(events, start=1):
            event = tf.compat.v1.Event(wall_time=time, step=step)
            for tag, number in scalars.items():
                value = event.summary.value.add(tag=tag)
                if as_tensors:
                    value.tensor.CopyFrom(tf.make_tensor_proto(number, tf.float32))
                else:
                    value.simple_value = number
            writer.write(event.SerializeToString())
    return path


def sync_figures(
    updates: int, contributed: Mapping[str, int], waited: Mapping[str, float], **totals
) -> dict[str, float]:
    """What synchronous training writes at one moment, with a quorum of 2."""
    figures = {"updates": updates, "applied": 2 * updates, "quorum": 2, **totals}
    for task, count in contributed.items():
        figures[f"contributed/{task}"] = count
        figures[f"waited_secs/{task}"] = waited[task]
        figures[f"live/{task}"] = 1
    return {f"sync/{name}": float(value) for name, value in figures.items()}
