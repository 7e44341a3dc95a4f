"""A checkpoint from which a warm start takes what fits a model."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.checkpoint.contents import Contents, Share
from tf_syncrep.python.checkpoint.directory import (
    DamagedError,
    Directory,
    Manifest,
    reader_of,
    value_of,
)
from tf_syncrep.python.checkpoint.engine import KEYED, NOTES, shapes_of
from tf_syncrep.python.checkpoint.keyed_tables import Chunk, Owners, chunks_of
from tf_syncrep.python.ops import checkpoint_ops

# A checkpoint of TensorFlow's has it if its names are paths of attributes.
OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NAME = re.compile(r"ckpt-(\d+)")
# What follows the name of an array: rows that have changed, and its part.
_CHANGED = re.compile(r"/changed/\d+-\d+/(?:ids|rows)$")
_PART = re.compile(r"/\d+-of-\d+$")
# How many bytes of a row's first array a task reads at a time.
_BYTES_AT_A_TIME = 8 << 20


@dataclasses.dataclass(frozen=True)
class Rows:
    """A table in the files: its number of rows, and how it is stored.

    `shards`: into how many parts it is split there, by row number.
    """

    num: int
    shape: tuple[int, ...]
    dtype: tf.DType
    shards: int

    def some(self) -> Iterator[range]:
        """Yields the numbers of rows that are read at a time."""
        row_bytes = max(1, math.prod(self.shape)) * self.dtype.size
        at_a_time = max(1, _BYTES_AT_A_TIME // (row_bytes * self.shards)) * self.shards
        for begin in range(0, self.num, at_a_time):
            yield range(begin, min(begin + at_a_time, self.num))


class Run(NamedTuple):
    """Rows of arrays of a table, and what reads them, on the device of its caller."""

    ids: range
    read: Callable[[], list[Any]]


class Source:
    """A full checkpoint, and those with its later changes."""

    #: Whether it has no slots by name.
    without_slots = False

    def __init__(self, prefixes: Sequence[str], state: dict[str, Any] | None = None):
        """Reads what is in the files, and no values.

        `state`: of the last manifest; None if there is none, as of TensorFlow's own.
        """
        self.prefixes = list(prefixes)
        self._has_manifest = state is not None
        self.state = state or {}
        self.keyed: dict[str, Any] = self.state.get(KEYED, {})
        notes = self.state.get(NOTES, {})
        self.trainers: dict[str, str] = notes.get("trainers", {})
        self._rows: dict[str, int] = notes.get("rows", {})
        # Tables are in the full checkpoint, and all else is in each checkpoint.
        self.shapes = {**shapes_of(prefixes[0]), **shapes_of(prefixes[-1])}
        self.readers = {prefix: reader_of(prefix) for prefix in prefixes}
        self._dtypes: dict[str, tf.DType] = {}
        for prefix in (prefixes[0], prefixes[-1]):
            self._dtypes |= self.readers[prefix].get_variable_to_dtype_map()
        #: The names of variables and of their slots.
        self.names = {without_part(_CHANGED.sub("", x)) for x in self.shapes}

    @property
    def path(self) -> str:
        """The prefix of the newest files."""
        return self.prefixes[-1]

    def rows(self, name: str, row_dims: int, is_table: bool) -> Rows | None:
        """Returns how an array is stored row by row, or None if it is not.

        `row_dims`: how many dimensions a row of the model has.
        """
        shape = self.shapes.get(name)
        if not shape:
            return None
        dtype = self._dtypes[name]
        noted = self._rows.get(re.sub("^slots/[^/]+/", "", name))
        if noted is not None or (is_table and len(shape) == row_dims + 2):
            # Before it was noted, a table was known with its padding.
            num = noted or shape[0] * shape[1]
            return Rows(num, tuple(shape[2:]), dtype, shape[1])
        return Rows(shape[0], tuple(shape[1:]), dtype, 1)

    def whole(self, name: str) -> tuple[tuple[int, ...], tf.DType]:
        """Returns the shape and dtype of a variable that is stored at once."""
        return tuple(self.shapes[name]), self._dtypes[name]

    def chunks(
        self, names: Sequence[str], owners: Owners, num_owners: int
    ) -> Iterator[Chunk]:
        """Yields the rows of a table that grows, as `chunks_of` does.

        `names`: its vectors, keys, uses and slots.
        """
        num_parts = self.keyed[names[0]]["num_parts"]
        return chunks_of(names, num_parts, self.readers, owners, num_owners)

    def take(self, calls: Any, shares: Mapping[str, Share]) -> None:
        """Has each task read its share, by the names in the files."""
        calls.restore(Contents(_shares=dict(shares)), self.prefixes)

    def runs(
        self, like: Sequence[Any], names: Sequence[str], stored: Rows
    ) -> Iterator[Run]:
        """Yields all rows of arrays of a table of fixed size, some at a time.

        `like`: variables with such rows, whose dtypes the rows get. Of a checkpoint of
        TensorFlow's an array is read as a whole, as TensorFlow reads it.
        """
        dtypes = [x.dtype for x in like]
        read_all = functools.cache(functools.partial(self._read_all, names, dtypes))
        for ids in stored.some():
            if stored.shards == 1 and not self._has_manifest:
                yield Run(ids, functools.partial(rows_of, read_all, ids))
            else:
                read = functools.partial(self._read_range, like, names, ids, stored.num)
                yield Run(ids, read)

    def _read_all(self, names: Sequence[str], dtypes: Sequence[tf.DType]) -> list[Any]:
        """Reads arrays as a whole."""
        read = tf.raw_ops.RestoreV2(
            prefix=self.path,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            dtypes=[self._dtypes[name] for name in names],
        )
        return [*map(tf.cast, read, dtypes)]

    def _read_range(
        self, like: Sequence[Any], names: Sequence[str], ids: range, num_rows: int
    ) -> list[Any]:
        """Reads rows next to each other of a table of so many rows."""
        num = len(ids)
        read = [tf.Variable(tf.zeros([num, *x.shape[1:]], x.dtype)) for x in like]
        checkpoint_ops.checkpoint_restore(
            self.prefixes,
            [[x.handle for x in read]],
            [(0, num, ids.start, 1, num_rows)],
            names,
            [],
            [],
            [num_rows],
        )
        return read

    def read(self, name: str) -> np.ndarray:
        """Reads a variable that is no table."""
        last = self.readers[self.path]
        if last.has_tensor(name):
            return value_of(last, name)
        # It is so large that later files have only the rows that have changed.
        shape, dtype = self.whole(name)
        with tf.device("/device:CPU:0"):
            like = tf.TensorSpec([0, *shape[1:]], dtype)
            (values,) = self._read_range([like], [name], range(shape[0]), shape[0])
        return values.numpy()


def rows_of(read_all: Callable[[], list[Any]], ids: range) -> list[Any]:
    """Returns rows of arrays that are read as a whole when the first are wanted."""
    return [x[ids.start : ids.stop] for x in read_all()]


def without_part(name: str) -> str:
    """Returns the name of an array of which a name has a part."""
    return _PART.sub("", name)


def open_source(
    source: Any, of_objects: Callable[[str], Source] | None = None
) -> Source:
    """Finds the newest whole checkpoint of what a user gives as the source.

    `source`: a folder, or the prefix of a checkpoint's files. `of_objects`: opens one
    of tf.train.Checkpoint; without it, that is refused. Raises ValueError: it is
    neither. Raises DamagedError: no checkpoint there is whole.
    """
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
        raise ValueError(
            "`source` must be a checkpoint, or a folder of checkpoints. Received: "
            f"source={source!r}"
        )
    path = os.fsdecode(source)
    if "://" not in path:
        # Tasks have their own working directories.
        path = os.path.abspath(path)
    folder, name = os.path.split(path)
    match = _NAME.fullmatch(name)
    if match and tf.io.gfile.exists(f"{path}.json"):
        directory = Directory(folder, "source")
        manifests = [x for x in directory.manifests() if x.number == int(match[1])]
        return _whole(directory, manifests)
    if match and tf.io.gfile.isdir(f"{path}.writing"):
        raise ValueError(
            "`source` must be a checkpoint that is complete. Received: "
            f"source={path!r}, which is being written, or never was to its end"
        )
    if tf.io.gfile.exists(f"{path}.index"):
        return _of_tensorflow(path, of_objects)
    if not tf.io.gfile.isdir(path):
        raise ValueError(
            "`source` must be a checkpoint, or a folder of checkpoints. Received: "
            f"source={path!r}, where there is neither"
        )
    directory = Directory(path, "source")
    if directory.newest_number():
        return _whole(directory, directory.manifests())
    latest = tf.train.latest_checkpoint(path)
    if latest is None:
        raise ValueError(
            "`source` must be a folder with a checkpoint that is complete. Received: "
            f"source={path!r}, which has none"
        )
    return _of_tensorflow(latest, of_objects)


def _of_tensorflow(prefix: str, of_objects: Callable[[str], Source] | None) -> Source:
    """Opens a checkpoint of a Saver, or of a tf.train.Checkpoint."""
    source = Source([prefix])
    if OBJECTS in source.shapes:
        if of_objects is not None:
            return of_objects(prefix)
        raise ValueError(
            "`source` must not be a checkpoint of tf.train.Checkpoint, which names "
            "variables by the attributes that lead to them: restore it into a model "
            "like the one that it is of, and save that by tfs.keras.Checkpoint. "
            f"Received: source={prefix!r}"
        )
    return source


def _whole(directory: Directory, manifests: Sequence[Manifest]) -> Source:
    """Opens the newest of some checkpoints that is whole and finite."""
    damaged = []
    for manifest in reversed(manifests):
        prefix = directory.prefix(manifest.number)
        try:
            if manifest.not_finite is not None:
                raise DamagedError(f"{manifest.not_finite} is not finite")
            return Source(directory.check(manifest), manifest.state)
        except DamagedError as error:
            logging.warning("Checkpoint %s is passed over: %s", prefix, error)
            damaged.append(f"{prefix}: {error}")
    raise DamagedError(
        f"None of the checkpoints in {directory.path} can be taken. "
        + ("; ".join(damaged) or "The log says what is wrong with each.")
    )
