"""Files of Keras, `.weights.h5` and `.keras`, from which a warm start takes weights.

They know a layer's variables, and an optimizer's slots, by their numbers. So nothing of
an optimizer is taken, and variables are named by those of the model's layer of that
name. The coordinator reads the file, some rows at a time, and sends them to the
servers.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Share
from tf_syncrep.python.checkpoint.directory import DamagedError
from tf_syncrep.python.checkpoint.keyed_tables import Chunk, Owners
from tf_syncrep.python.checkpoint.source import Rows, Run, Source
from tf_syncrep.python.keras.checkpoint.file_names import LAYERS, FileNames, Step
from tf_syncrep.python.keras.tables.slots import KEYS, USES
from tf_syncrep.python.keras.tables.stacked_tables import chunks, write_rows

ENDINGS = (".weights.h5", ".keras")
_WEIGHTS = "model.weights.h5"
# HDF5 does not know bfloat16.
_OPAQUE = np.dtype("V2")


class FileSource(Source):
    """The weights in a file of Keras, which stays open while rows are read."""

    without_slots = True

    def __init__(
        self,
        path: str,
        names: Callable[[Sequence[Step]], FileNames],
        files: contextlib.ExitStack,
    ):
        """Opens the file.

        `names`: returns what names the variables, given the layers of its list. Raises
        ValueError: there is no such file. Raises DamagedError: it cannot be read.
        """
        if not tf.io.gfile.exists(path):
            raise ValueError(
                "`source` must be a checkpoint, a folder of checkpoints, or a file of "
                f"Keras. Received: source={path!r}, which is not there"
            )
        self._path = path
        try:
            file: Any = files.enter_context(tf.io.gfile.GFile(path, "rb"))
            if path.endswith(".keras"):
                whole = files.enter_context(zipfile.ZipFile(file))
                file = files.enter_context(whole.open(_WEIGHTS))
            opened = files.enter_context(h5py.File(file))
            self._arrays = _arrays_in(opened, names(_listed_in(opened)))
        except (OSError, KeyError, zipfile.BadZipFile, tf.errors.OpError) as error:
            raise DamagedError(f"{path} cannot be read: {error}") from error
        self.trainers, self.readers = {}, {path: None}
        self.names = {*self._arrays, *(["optimizer"] if "optimizer" in opened else [])}
        self.shapes = {name: list(x.shape) for name, x in self._arrays.items()}
        self.keyed = {
            name: {"rows": {x: self._row(x) for x in _of_rows(name)}}
            for name in self._arrays
            if f"keys/{name}" in self._arrays
        }

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path

    def whole(self, name: str) -> tuple[tuple[int, ...], tf.DType]:
        """Returns the shape and dtype of a variable."""
        array = self._arrays[name]
        dtype = tf.bfloat16 if array.dtype == _OPAQUE else tf.as_dtype(array.dtype)
        return tuple(array.shape), dtype

    def _row(self, name: str) -> list[Any]:
        """Returns the dtype and the shape of a row."""
        (_, *row), dtype = self.whole(name)
        return [dtype.name, *row]

    def chunks(
        self, names: Sequence[str], owners: Owners, num_owners: int
    ) -> Iterator[Chunk]:
        """Yields the rows of a table that grows."""
        _, keys, uses = map(self.read, _of_rows(names[0]))
        for some in chunks(range(len(keys)), tf.TensorSpec(*self.whole(names[0]))):
            here = slice(some.start, some.stop)
            owner = owners(keys[here])
            yield Chunk(
                [owner == i for i in range(num_owners)],
                keys[here],
                uses[here],
                functools.partial(self._read_rows, names, here),
            )

    def _read_rows(
        self, names: Sequence[str], rows: slice, dtypes: Sequence[tf.DType]
    ) -> list[Any]:
        """Reads rows of some arrays, and sends them to where the caller is."""
        return [*map(tf.cast, [self._read(name, rows) for name in names], dtypes)]

    def rows(self, name: str, row_dims: int, is_table: bool) -> Rows | None:
        """Returns the rows of an array."""
        del row_dims, is_table
        if not self.shapes.get(name):
            return None
        shape, dtype = self.whole(name)
        return Rows(shape[0], shape[1:], dtype, 1)

    def read(self, name: str) -> np.ndarray:
        """Reads a variable."""
        return self._read(name, ...)

    def runs(
        self, like: Sequence[Any], names: Sequence[str], stored: Rows
    ) -> Iterator[Run]:
        """Yields all rows of arrays of a table of fixed size, some at a time."""
        dtypes = [x.dtype for x in like]
        for ids in stored.some():
            rows = slice(ids.start, ids.stop)
            yield Run(ids, functools.partial(self._read_rows, names, rows, dtypes))

    def take(self, calls: Any, shares: Mapping[str, Share]) -> None:
        """Sets the rows and variables of shares."""
        for share in shares.values():
            for group in share.groups:
                begin = 0
                for piece in group.pieces:
                    for name, variable in zip(
                        piece.names, group.variables, strict=True
                    ):
                        if name:
                            self._take_piece(name, variable, piece, begin)
                    begin += piece.num_rows
            calls.assign((x, self.read(name)) for name, x in share.wholes.items())

    def _take_piece(self, name: str, variable: Any, piece: Any, begin: int) -> None:
        ids = range(piece.first, piece.stored_rows, piece.stride)[: piece.num_rows]
        for some in chunks(range(len(ids)), variable):
            of_some = ids[some.start : some.stop]
            values = self._read(name, slice(of_some.start, of_some.stop, of_some.step))
            rows = np.arange(some.start, some.stop) + begin
            write_rows(variable, rows, values[: len(rows)])

    def _read(self, name: str, index: Any) -> np.ndarray:
        try:
            values = np.asarray(self._arrays[name][index])
        except (OSError, zipfile.BadZipFile) as error:
            raise DamagedError(f"{name}: {error}") from error
        is_opaque = values.dtype == _OPAQUE
        return values.view(tf.bfloat16.as_numpy_dtype) if is_opaque else values


def _of_rows(name: str) -> tuple[str, str, str]:
    """Returns the names of a growing table's vectors, of their keys and their uses."""
    return name, f"keys/{name}", f"uses/{name}"


def _arrays_in(file: Any, name_of: FileNames) -> dict[str, Any]:
    """Returns the arrays of a file by the names of a checkpoint's variables."""
    found: list[tuple[str, str, list[Any]]] = []

    def visit(path: str, group: Any) -> None:
        *parts, last = path.split("/")
        if last != "vars" or {*parts[:1]} & {"optimizer", "metrics"}:
            return
        way = [
            Step(part, _name_in(file, [*parts[: i + 1], last]))
            for i, part in enumerate(parts)
        ]
        for key in group:
            if "%" in key.replace("%25", "").replace("%2F", ""):
                continue  # of the layout, and of rows of tables that grow
            kinds = [kind for kind in ("", KEYS, USES) if key + kind in group]
            arrays = [group[key + kind] for kind in kinds]
            found.append((name_of(way, key), f"variables/{path}/{key}", arrays))

    file.visititems(visit)
    counts = collections.Counter(name for name, *_ in found)
    named: dict[str, Any] = {}
    for name, path, arrays in found:
        # A name that two have tells neither.
        name = name if counts[name] == 1 else path
        named |= zip(_of_rows(name), arrays, strict=False)
    return named


def _listed_in(file: Any) -> list[Step]:
    """Returns the layers in the list of a functional or sequential model."""
    return [
        Step(place, _name_in(file, [attribute, place, "vars"]))
        for attribute in LAYERS
        for place in file.get(attribute, ())
    ]


def _name_in(file: Any, parts: Sequence[str]) -> str | None:
    """Returns the name that a layer has in a file; None if it has none there."""
    group = file.get("/".join(parts))
    name = None if group is None else group.attrs.get("name")
    return name.decode() if isinstance(name, bytes) else name
