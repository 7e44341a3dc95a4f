"""A warm start's tables that grow, in the model or in the source.

Rows of a table of a fixed size have their numbers as keys.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_syncrep.python.checkpoint.keyed_tables import (
    Chunk,
    KeyedTable,
    keep_most_used,
    num_of,
)
from tf_syncrep.python.checkpoint.source import Rows, Source
from tf_syncrep.python.checkpoint.warm_arrays import Arrays, is_row, other_row
from tf_syncrep.python.checkpoint.warm_items import Item, Place, Taken
from tf_syncrep.python.ops import table_ops

# At how many numbers of rows the coordinator looks at a time.
_NUMBERS_AT_A_TIME = 1 << 20


class Growing:
    """Plans what rows go to which keys or numbers."""

    def __init__(self, arrays: Arrays, truncate: bool):
        """Has planned nothing yet."""
        self._arrays, self._source, self._truncate = arrays, arrays.source, truncate

    def plan(self, item: Item, stored: str) -> Taken | str:
        """Returns what is taken for a table, or says why nothing is."""
        if stored not in self._source.keyed:
            return self._plan_from_fixed(item, stored)
        saved = self._source.keyed[stored]
        rows = {
            name: (row, tf.as_dtype(dtype))
            for name, (dtype, *row) in saved["rows"].items()
        }

        def fits(array: str) -> bool:
            found = rows.get(self._arrays.name_of(array))
            return found is not None and is_row(*found, item.arrays[array])

        if not fits(item.name):
            return other_row(*rows[stored], item.variable)
        if not (item.keyed or item.places):
            return "it grows there, and here it is a variable that is read at once"
        slots, left_out = self._arrays.slots(item, stored, fits)
        name = item.name
        arrays = [name, f"keys/{name}", f"uses/{name}", *slots]
        names = [*map(self._arrays.name_of, arrays)]
        dtypes = [rows[x][1] for x in names]
        if item.keyed is not None:
            owners, num_owners = item.keyed.owners, len(item.keyed.parts)
        else:
            owners = functools.partial(_owners_by_number, item.places)
            num_owners = len(item.places)
        chunks = [*self._source.chunks(names, owners, num_owners)]
        if item.keyed is None:
            return self._plan_for_fixed(item, stored, slots, dtypes, chunks, left_out)
        num = int(sum(num_of(chunks, num_owners)))
        keep_most_used(chunks, [part.num_rows for part in item.keyed.parts])
        kept = int(sum(num_of(chunks, num_owners)))
        if kept < num:
            left_out.append(f"the {num - kept:,} least used of {num:,} rows left out")
        move = functools.partial(
            _only(item.keyed, arrays, names).restore, chunks, dtypes
        )
        return Taken([name, *slots], dtypes[0], kept, kept, left_out, move=move)

    def _plan_for_fixed(
        self,
        item: Item,
        stored: str,
        slots: Sequence[str],
        dtypes: Sequence[tf.DType],
        chunks: Sequence[Chunk],
        left_out: list[str],
    ) -> Taken:
        num_out = 0
        for chunk in chunks:
            is_number = (chunk.keys >= 0) & (chunk.keys < item.num_rows)
            other = chunk.keys[np.any(chunk.masks, axis=0) & ~is_number]
            if other.size and not self._truncate:
                raise ValueError(
                    "A table of fixed size must have a row for each key of a table that"
                    f" grows, if `truncate` is not True. Received: {item.name} of "
                    f"{item.num_rows:,} rows, where {stored} has key {other[0]}"
                )
            num_out += other.size
            for mask in chunk.masks:
                mask &= is_number
        if num_out:
            left_out.append(f"{num_out:,} keys that are no row left out")
        arrays = [item.name, *slots]
        return Taken(
            arrays,
            dtypes[0],
            int(sum(num_of(chunks, len(item.places)))),
            item.num_rows,
            left_out,
            ["a key is the number of its row"],
            functools.partial(
                _fill_fixed_from_growing, chunks, dtypes, arrays, item.places
            ),
        )

    def _plan_from_fixed(self, item: Item, stored: str) -> Taken | str:
        table = item.keyed
        assert table is not None
        found = self._arrays.rows(item, item.name)
        if found is None:
            return self._arrays.other_shape(item, stored)
        nums = np.zeros(len(table.parts), np.int64)
        for begin in range(0, found.num, _NUMBERS_AT_A_TIME):
            end = min(begin + _NUMBERS_AT_A_TIME, found.num)
            owners = table.owners(np.arange(begin, end))
            nums += np.bincount(owners, minlength=len(nums))
        for part, num in zip(table.parts, nums, strict=True):
            if num > part.num_rows:
                raise ValueError(
                    "A table that grows must have room for all rows of a table of "
                    f"fixed size: make it with a larger max_rows. Received: {item.name}"
                    f" with room for {part.num_rows:,} of one part, where {stored} has "
                    f"{num:,} of {found.num:,} rows"
                )
        slots, left_out = self._arrays.slots(
            item, stored, lambda array: self._arrays.rows(item, array)
        )
        arrays = [item.name, *slots]
        taking = _only(table, arrays, [*map(self._arrays.name_of, arrays)])
        return Taken(
            arrays,
            found.dtype,
            found.num,
            found.num,
            left_out,
            ["the number of a row is its key"],
            functools.partial(_fill_growing_from_fixed, taking, self._source, found),
        )


def _owners_by_number(places: Sequence[Place], keys: np.ndarray) -> np.ndarray:
    """Returns the places of the rows with these numbers."""
    owner_of = np.zeros(places[0].piece.stride, np.int64)
    owner_of[[place.piece.first for place in places]] = range(len(places))
    return owner_of[keys % len(owner_of)]


def _only(table: KeyedTable, arrays: Sequence[str], names: Sequence[str]) -> KeyedTable:
    """Returns some arrays of a table, by their names in the source.

    Rows that the table has stay: a model that was not trained yet has none.
    """
    parts = tuple(
        dataclasses.replace(
            part,
            variables=tuple(
                dict(zip(table.arrays, part.variables, strict=True))[x] for x in arrays
            ),
            reset=lambda: None,
        )
        for part in table.parts
    )
    return KeyedTable(table.name, tuple(names), parts, table.owners)


def _fill_growing_from_fixed(table: KeyedTable, source: Source, stored: Rows) -> None:
    """Gives the rows of a table of fixed size to the keys that are their numbers.

    Each task reads all rows, some at a time, and keeps its own.
    """
    for number, part in enumerate(table.parts):
        for ids, read in source.runs(part.variables, table.arrays, stored):
            keys = np.asarray(ids)
            (here,) = np.nonzero(table.owners(keys) == number)
            with tf.device(part.device):
                rows_read = read()
                last_use = tf.fill([len(here)], table_ops.NOW)
                counts = tf.ones([len(here)], tf.int32)
                rows = part.add(tf.constant(keys[here]), last_use, counts)
                for variable, values in zip(part.variables, rows_read, strict=True):
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=variable.handle,
                        indices=rows,
                        updates=tf.gather(values, here),
                    )


def _fill_fixed_from_growing(
    chunks: Sequence[Chunk],
    dtypes: Sequence[tf.DType],
    arrays: Sequence[str],
    places: Sequence[Place],
) -> None:
    """Gives the rows of a table that grows to the numbers that are their keys.

    `chunks`: with vectors, keys, uses and slots; a mask for each of the places.
    `dtypes`: of these in the files. `arrays`: names of the vectors and the slots.
    """
    for number, place in enumerate(places):
        piece = place.piece
        for chunk in chunks:
            mask = chunk.masks[number]
            if not mask.any():
                continue
            ids = (chunk.keys[mask] - piece.first) // piece.stride + place.begin
            with tf.device(place.device):
                vectors, _, _, *slots = chunk.read(dtypes)
                for array, values in zip(arrays, [vectors, *slots], strict=True):
                    variable = place.variables[array]
                    values = tf.cast(tf.boolean_mask(values, mask), variable.dtype)
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=variable.handle,
                        indices=tf.constant(ids),
                        updates=values,
                    )
