"""Reads the scalars in TensorBoard's event files."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np
import tensorflow as tf
from google.protobuf import message

from tf_syncrep.python.base.sizes import PLACEMENT

# The part that all names of event files contain.
_IN_NAMES = "tfevents"


class UnreadableFileError(Exception):
    """A file is not an event file, or cannot be read."""


@dataclasses.dataclass(frozen=True)
class Series:
    """The values of a scalar over time."""

    times: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class EventFile:
    """The content of one event file.

    `begin`: when it was created, in seconds since the epoch. `damage`: says in one line
    what could not be read, if the file is damaged in the middle. `placement`: rows of a
    server, a variable and its bytes, as they were written last.
    """

    path: pathlib.Path
    begin: float
    scalars: dict[str, Series]
    damage: str | None = None
    placement: tuple[tuple[str, str, int], ...] = ()


def find(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the event files in a folder and all folders below it, sorted."""
    return sorted(
        pathlib.Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if _IN_NAMES in name
    )


def read(path: pathlib.Path) -> EventFile | None:
    """Reads an event file with scalars in the form of TF 1 or of TF 2.

    The last record may be incomplete, if it is just being written. Returns None if
    there is no event at all. Raises UnreadableFileError: nothing could be read.
    """
    begin = damage = None
    num_events = 0
    points: dict[str, list[tuple[float, float]]] = {}
    placement: tuple[tuple[str, str, int], ...] = ()
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            begin = event.wall_time if begin is None else begin
            num_events += 1
            for value in event.summary.value:
                if value.tag == PLACEMENT:
                    placement = _placement(value) or placement
                number = _scalar(value)
                if number is not None:
                    points.setdefault(value.tag, []).append((event.wall_time, number))
    except (tf.errors.OpError, message.DecodeError) as error:
        reason = (getattr(error, "message", None) or str(error)).splitlines()[0]
        if begin is None:
            raise UnreadableFileError(f"{path} cannot be read: {reason}") from None
        if "truncated record" not in reason:
            damage = f"{path} from its event {num_events + 1} on: {reason}"
    if begin is None:
        return None
    scalars = {tag: Series(*np.array(x).T) for tag, x in points.items()}
    return EventFile(path, begin, scalars, damage, placement)


def _placement(value) -> tuple[tuple[str, str, int], ...]:
    """Returns the rows of a placement; none if it is something else."""
    if value.WhichOneof("value") != "tensor":
        return ()
    array = tf.make_ndarray(value.tensor)
    if array.dtype != object or array.ndim != 2 or array.shape[1] != 3:
        return ()
    rows = [[cell.decode(errors="replace") for cell in row] for row in array]
    return tuple((*row[:2], int(row[2])) for row in rows if row[2].isdigit())


def _scalar(value) -> float | None:
    """Returns the number in a `Summary.Value`, or None if it is something else."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind == "tensor" and tf.as_dtype(value.tensor.dtype) != tf.string:
        array = tf.make_ndarray(value.tensor)
        if array.size == 1:
            return float(array.item())
    return None
