"""Files of Keras, `.weights.h5` and `.keras`, from which a warm start takes weights.

They know a layer's variables, and an optimizer's slots, by their numbers. So slots are
not taken, and variables are named by those of the model's layer of that name. The
coordinator reads the file, some rows at a time, and sends them to the servers.
"""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Share
from tf_syncrep.python.checkpoint.directory import DamagedError
from tf_syncrep.python.checkpoint.source import Rows, Source
from tf_syncrep.python.keras.tables.stacked_tables import chunks, write_rows

ENDINGS = (".weights.h5", ".keras")
_WEIGHTS = "model.weights.h5"


class FileSource(Source):
    """The weights in a file of Keras, which stays open while rows are read."""

    without_slots = True

    def __init__(
        self,
        path: str,
        variables_of: Callable[[str], Sequence[str]],
        files: contextlib.ExitStack,
    ):
        """Opens the file.

        `variables_of`: returns the names of variables of the layer in whose place a
        layer of this name is taken; none if there is none. Raises ValueError: there is
        no such file. Raises DamagedError: it cannot be read.
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
            self._arrays = _arrays_in(
                files.enter_context(h5py.File(file)), variables_of
            )
        except (OSError, KeyError, zipfile.BadZipFile, tf.errors.OpError) as error:
            raise DamagedError(f"{path} cannot be read: {error}") from error
        self.keyed, self.trainers, self.readers = {}, {}, {path: None}
        self.names = set(self._arrays)
        self.shapes = {name: list(x.shape) for name, x in self._arrays.items()}

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path

    def whole(self, name: str) -> tuple[tuple[int, ...], tf.DType]:
        """Returns the shape and dtype of a variable."""
        array = self._arrays[name]
        return tuple(array.shape), tf.as_dtype(array.dtype)

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

    def read_range(
        self, like: Sequence[Any], names: Sequence[str], begin: int, num: int, _: int
    ) -> list[Any]:
        """Reads rows next to each other."""
        return [
            tf.cast(self._read(name, slice(begin, begin + num)), variable.dtype)
            for name, variable in zip(names, like, strict=True)
        ]

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
            return np.asarray(self._arrays[name][index])
        except (OSError, zipfile.BadZipFile) as error:
            raise DamagedError(f"{self._path} cannot be read: {error}") from error


def _arrays_in(
    file: Any, variables_of: Callable[[str], Sequence[str]]
) -> dict[str, Any]:
    """Returns the arrays of a file by the names of a checkpoint's variables."""
    found: dict[str, Any] = {}

    def visit(path: str, group: Any) -> None:
        parts = path.split("/")
        if parts[-1] != "vars" or parts[0] == "optimizer" or len(parts) < 2:
            return
        layer = _layer_name(parts[-2], group)
        names = variables_of(layer)
        for key, array in group.items():
            if "%" in key.replace("%25", "").replace("%2F", ""):
                continue  # of the layout, and of rows of tables that grow
            if f"{key}%keys" in group:
                continue
            if key.isdigit():
                number = int(key)
                name = names[number] if number < len(names) else key
                found[f"variables/{layer}/{name}"] = array
            else:
                found[f"tables/{key}"] = array

    file.visititems(visit)
    return found


def _layer_name(place: str, group: Any) -> str:
    """Returns a layer's name, as files number those to which Keras has given one."""
    name = group.attrs.get("name", place)
    name = name.decode() if isinstance(name, bytes) else str(name)
    stem = re.sub(r"_\d+$", "", place)
    return place if re.fullmatch(rf"{re.escape(stem)}(_\d+)?", name) else name
