"""Checkpoints of `tf.train.Checkpoint`, whose names are paths of attributes.

They also have the names that Keras gave to the variables: a warm start's are made of
these. Tables of a DistributedEmbedding lie in parts of stacks.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tf_syncrep.python.checkpoint.contents import Group, Piece, Share
from tf_syncrep.python.checkpoint.directory import DamagedError, value_of
from tf_syncrep.python.checkpoint.keyed_tables import Chunk, Owners
from tf_syncrep.python.checkpoint.source import (
    Rows,
    Run,
    Source,
    without_part,
)
from tf_syncrep.python.keras.checkpoint.contents import stem_of
from tf_syncrep.python.keras.checkpoint.object_names import (
    Slots,
    names_of_variables,
    slots_of,
)
from tf_syncrep.python.keras.checkpoint.object_tables import (
    SavedArray,
    SavedSlab,
    saved_slabs,
)
from tf_syncrep.python.keras.compat.object_graph import numbers_of_slots, objects_in
from tf_syncrep.python.keras.optimizer_slots import are_rows
from tf_syncrep.python.keras.tables.setting import keep
from tf_syncrep.python.keras.tables.stacked_tables import ONLY, as_key

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class ObjectSource(Source):
    """The variables of the objects, by the names of a Keras model's checkpoint."""

    def __init__(
        self,
        prefix: str,
        trainers: Iterable[str],
        stems: Mapping[str, bool],
        tables: Container[str],
    ):
        """Reads what is in the files, and of values the layout of tables alone.

        `trainers`: classes of the model's optimizers. `stems`: as of `numbered_stems`.
        `tables`: names of the model's tables. Raises DamagedError: the objects cannot
        be read.
        """
        super().__init__([prefix])
        reader = self.readers[prefix]
        try:
            objects = objects_in(reader)
            slabs = saved_slabs(objects, reader)
        except (DamagedError, DecodeError) as error:
            raise DamagedError(f"{prefix} cannot be read: {error}") from error
        of_variables, of_optimizers = _full_names(objects)
        names = names_of_variables(of_variables, stems)
        slots = slots_of(of_optimizers, {key: of_variables[key] for key in names})
        classes = {_plain(x): x for x in trainers}
        trained_by = {x: classes.get(_plain(y), y) for x, y in slots.trainers.items()}
        # What is of parts has no key of its own.
        of_parts = {key for slab in slabs for keys in slab.keys for key in keys}
        of_parts |= {key for x in of_parts for key in slots.of.get(x, {}).values()}
        named = {**names, **slots.others}
        for key in slots.of.keys() - of_parts:
            for kind, slot in slots.of[key].items():
                part = "" if self._is_by_rows(slot, key) else "/0-of-1"
                named[slot] = f"slots/{kind}/{names[key]}{part}"
            self.trainers[names[key]] = trained_by[key]
        keys = [x for x in (*of_variables, *of_optimizers) if x not in of_parts]
        counts = collections.Counter(named.get(key) for key in keys)
        self._keys = {}
        for key in keys:
            # A name that two have tells neither.
            name = named.get(key)
            if name is None or counts[name] > 1:
                name = f"variables/{key.removesuffix(_VALUE)}"
            self._keys[name] = key
        self._arrays: dict[str, SavedArray] = {}
        for slab, names_here in _with_names(slabs, names, tables):
            self._add_slab(slab, names_here, slots)
            if slab.vectors[0] in trained_by:
                of_slab = trained_by[slab.vectors[0]]
                self.trainers |= dict.fromkeys(names_here, of_slab)
        shapes, dtypes = self.shapes, self._dtypes
        self.shapes = {name: shapes[key] for name, key in self._keys.items()}
        self._dtypes |= {name: dtypes[key] for name, key in self._keys.items()}
        for name, array in self._arrays.items():
            if not array.table.grows:
                self.shapes[name] = [array.table.vocabulary_size, *array.row]
                self._dtypes[name] = array.dtype
        self.names = {*map(without_part, self._keys), *self._arrays}

    def _add_slab(self, slab: SavedSlab, names: Sequence[str], slots: Slots) -> None:
        """Adds a stack's tables, with slots that are known of all parts."""
        of_parts = [slots.of.get(key, {}) for key in slab.vectors]
        kinds = sorted(set.intersection(*map(set, of_parts)))
        keys = {kind: [x[kind] for x in of_parts] for kind in kinds}
        by_rows = {
            kind: x
            for kind, x in keys.items()
            if self._is_by_rows(x[0], slab.vectors[0])
        }
        for table, name in zip(slab.slab.tables, names, strict=True):
            arrays = slab.arrays(table, name, by_rows, self.whole)
            self._arrays |= arrays
            if table.grows:
                rows = {x: [y.dtype.name, *y.row] for x, y in arrays.items()}
                self.keyed[name] = {"rows": rows}
            for kind in keys.keys() - by_rows.keys():
                for part, key in enumerate(keys[kind]):
                    of_part = f"slots/{kind}/{name}/{part}-of-{len(of_parts)}"
                    self._keys[of_part] = key

    def _is_by_rows(self, slot: str, variable: str) -> bool:
        """Returns whether a slot has the rows of its variable, by their keys."""
        return are_rows(*(tf.TensorSpec(self.shapes[x]) for x in (slot, variable)))

    def rows(self, name: str, row_dims: int, is_table: bool) -> Rows | None:
        """Returns how an array is stored row by row."""
        if name in self._arrays:
            return self._arrays[name].rows
        return super().rows(name, row_dims, is_table)

    def chunks(
        self, names: Sequence[str], owners: Owners, num_owners: int
    ) -> Iterator[Chunk]:
        """Yields the rows of a table that grows: those of a part at once."""
        arrays = [self._arrays[name] for name in names]
        slab, table = arrays[0].slab, arrays[0].table
        begin, num = slab.first_row(table), slab.capacity(table)
        reader = self.readers[self.path]
        for part_number in range(slab.num_parts):
            keys_of = [x.keys[part_number] for x in arrays]
            keys, uses = (value_of(reader, x)[begin:][:num] for x in keys_of[1:3])
            owner, is_used = owners(keys), uses[:, 1] > 0
            masks = [is_used & (owner == i) for i in range(num_owners)]
            rows = range(begin, begin + num)
            yield Chunk(
                masks, keys, uses, functools.partial(self._read_part, keys_of, rows)
            )

    def _read_part(
        self, keys: Sequence[str], rows: range, dtypes: Sequence[tf.DType]
    ) -> list[Any]:
        """Reads rows of a part, where the caller is."""
        return [x[rows.start : rows.stop] for x in self._read_all(keys, dtypes)]

    def runs(
        self, like: Sequence[Any], names: Sequence[str], stored: Rows
    ) -> Iterator[Run]:
        """Yields all rows of arrays of a table of fixed size, part by part."""
        if names[0] not in self._arrays:
            yield from super().runs(like, [self._keys[x] for x in names], stored)
            return
        arrays = [self._arrays[name] for name in names]
        dtypes = [x.dtype for x in like]
        for part_number, keys in enumerate(zip(*(x.keys for x in arrays), strict=True)):
            read_all = functools.cache(functools.partial(self._read_all, keys, dtypes))
            yield from arrays[0].runs(part_number, read_all)

    def take(self, calls: Any, shares: Mapping[str, Share]) -> None:
        """Has each task read its share."""
        by_key = {device: self._by_key(share) for device, share in shares.items()}
        super().take(calls, by_key)
        for share in shares.values():
            with tf.device(share.device):
                self._fill(share)
            calls.assign(
                (variable, self.read(name))
                for name, variable in share.wholes.items()
                if name in self._arrays
            )

    def _by_key(self, share: Share) -> Share:
        """Returns what is read by keys."""
        groups = [
            Group(
                group.variables,
                tuple(
                    dataclasses.replace(
                        x, names=tuple(self._keys.get(name, "") for name in x.names)
                    )
                    for x in group.pieces
                ),
            )
            for group in share.groups
        ]
        wholes = {
            self._keys[name]: variable
            for name, variable in share.wholes.items()
            if name in self._keys
        }
        return Share(share.device, groups, wholes)

    def _fill(self, share: Share) -> None:
        """Reads rows of tables that lie in parts of stacks, each part once."""
        wanted: dict[str, list[Any]] = collections.defaultdict(list)
        for group in share.groups:
            begin = 0
            for piece in group.pieces:
                for name, variable in zip(piece.names, group.variables, strict=True):
                    array = self._arrays.get(name)
                    for number, key in enumerate(array.keys if array else ()):
                        wanted[key].append((array, number, variable, piece, begin))
                begin += piece.num_rows
        for key, of_part in wanted.items():
            read_all = functools.cache(
                functools.partial(self._read_all, [key], [self._dtypes[key]])
            )
            for array, number, variable, piece, begin in of_part:
                _fill_piece(array.runs(number, read_all), variable, piece, begin)

    def read(self, name: str) -> np.ndarray:
        """Reads a variable."""
        if name in self._keys:
            return value_of(self.readers[self.path], self._keys[name])
        shape, dtype = self.whole(name)
        values = np.empty(shape, dtype.as_numpy_dtype)
        with tf.device("/device:CPU:0"):
            like = tf.TensorSpec(shape, dtype)
            for ids, read in self.runs([like], [name], self._arrays[name].rows):
                (values[np.asarray(ids)],) = read()
        return values


def _fill_piece(runs: Iterable[Run], variable: Any, piece: Piece, begin: int) -> None:
    """Sets the rows of a piece, from `begin` on, that are in some runs."""
    for ids, read in runs:
        numbers, others = np.divmod(np.asarray(ids) - piece.first, piece.stride)
        is_here = (others == 0) & (numbers >= 0) & (numbers < piece.num_rows)
        (here,) = np.nonzero(is_here)
        if here.size:
            rows = begin + numbers[here]
            keep(variable, rows)
            values = tf.cast(tf.gather(*read(), here), variable.dtype)
            variable.scatter_update(tf.IndexedSlices(values, tf.constant(rows)))


def _full_names(objects: Sequence[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the names of variables by their keys, and those of optimizers'."""
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    of_optimizers = numbers_of_slots(objects)
    for number, node in enumerate(objects):
        for x in node.attributes:
            key = x.checkpoint_key
            if key.endswith(_VALUE) and key != f"save_counter{_VALUE}":
                found[number in of_optimizers][key] = x.full_name
    return found


def _with_names(
    slabs: Sequence[SavedSlab], names: Mapping[str, str], tables: Container[str]
) -> Iterator[tuple[SavedSlab, list[str]]]:
    """Yields stacks with the names of their tables.

    `names`: of variables. `tables`: the model's. A table is named by itself, or by its
    layer if that is for one table.
    """
    found = []
    for slab in slabs:
        of_layer = names.get(slab.vectors[0], "").rpartition("/")[0]
        is_by_layer = of_layer and f"tables/{ONLY}" not in tables
        found.append(
            [
                f"{of_layer if is_by_layer and x.name == ONLY else 'tables'}/"
                f"{as_key(x.name)}"
                for x in slab.slab.tables
            ]
        )
    counts = collections.Counter(name for some in found for name in some)
    for slab, some in zip(slabs, found, strict=True):
        key = slab.vectors[0].removesuffix(_VALUE)
        # A name that two have tells neither.
        yield slab, [x if counts[x] == 1 else f"variables/{key}/{x}" for x in some]


def _plain(optimizer: str) -> str:
    """Returns what is common to names of a class's optimizers, and the class's."""
    return stem_of(optimizer)[0].replace("_", "").lower()
