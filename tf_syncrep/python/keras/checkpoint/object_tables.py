"""Tables in a checkpoint of `tf.train.Checkpoint`, which has the parts of their stacks.

`keras/embedding/tracking.py` saves them so, with the layout of the stacks beside them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.directory import value_of
from tf_syncrep.python.checkpoint.source import Rows, Run, rows_of
from tf_syncrep.python.embedding.layout import DynamicSlab, Slab, Table
from tf_syncrep.python.keras.tables.fixed_tables import Tables
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.saved_layout import (
    GROWING,
    OF_FIXED_SIZE,
    from_json,
)


@dataclasses.dataclass(frozen=True)
class SavedSlab:
    """A stack of tables with the keys of its parts' variables.

    `keys`: by part, of the vectors, and of keys and uses if the tables grow.
    """

    slab: Slab | DynamicSlab
    keys: list[list[str]]

    @property
    def vectors(self) -> list[str]:
        """The keys of the parts' vectors."""
        return [of_part[0] for of_part in self.keys]

    def arrays(
        self,
        table: Table,
        name: str,
        slots: Mapping[str, list[str]],
        kind_of: Callable[[str], tuple[Sequence[int], tf.DType]],
    ) -> dict[str, SavedArray]:
        """Returns a table's arrays by name.

        `slots`: keys of those by rows, by kind. `kind_of`: returns the shape and dtype
        of a key.
        """
        by_kind = [list(x) for x in zip(*self.keys, strict=True)]
        of_parts = dict(zip(["", "keys/", "uses/"], by_kind, strict=False))
        of_parts |= {f"slots/{kind}/": keys for kind, keys in slots.items()}
        found = {}
        for head, keys in of_parts.items():
            (_, *row), dtype = kind_of(keys[0])
            found[head + name] = SavedArray(self.slab, table, keys, tuple(row), dtype)
        return found


def saved_slabs(objects: Sequence[Any], reader: Any) -> list[SavedSlab]:
    """Returns the stacks of all layers, as `objects_in` returned the objects."""
    found = []
    for node in objects:
        for child in node.children:
            if child.local_name in (OF_FIXED_SIZE, GROWING):
                found += _slabs_of(objects, child, reader)
    return found


def _slabs_of(objects: Sequence[Any], child: Any, reader: Any) -> Iterator[SavedSlab]:
    """Yields the stacks of one layer."""
    grow = child.local_name == GROWING
    children = {
        x.local_name: objects[x.node_id] for x in objects[child.node_id].children
    }
    (layout,) = children.pop("layout").attributes
    ((_, parts),) = children.items()
    nodes = {
        int(x.local_name.split("_")[1]): objects[x.node_id] for x in parts.children
    }
    keys = iter([x.checkpoint_key for i in sorted(nodes) for x in nodes[i].attributes])
    text = value_of(reader, layout.checkpoint_key).decode()
    num_kinds = len(DynamicTables.kinds if grow else Tables.kinds)
    for slab in from_json(text, DynamicSlab) if grow else from_json(text):
        yield SavedSlab(
            slab, [[*itertools.islice(keys, num_kinds)] for _ in range(slab.num_parts)]
        )


@dataclasses.dataclass(frozen=True)
class SavedArray:
    """A table, or what lies beside its rows, in the parts of a stack.

    `keys`: those of the parts. `row`: the shape of a row.
    """

    slab: Any
    table: Table
    keys: list[str]
    row: tuple[int, ...]
    dtype: tf.DType

    @property
    def rows(self) -> Rows:
        """How a table of fixed size is stored."""
        num = self.table.vocabulary_size
        return Rows(num, self.row, self.dtype, self.slab.num_parts)

    def runs(
        self, part_number: int, read_all: Callable[[], list[Any]]
    ) -> Iterator[Run]:
        """Yields the rows that are in a part; `read_all`: reads the part."""
        part = self.slab.part(self.table, part_number)
        ids = range(part.first_id, self.table.vocabulary_size, self.slab.num_parts)
        in_part = Rows(part.num_rows, self.row, self.dtype, 1)
        for some in in_part.some():
            rows = range(part.begin + some.start, part.begin + some.stop)
            here = ids[some.start : some.stop]
            yield Run(here, functools.partial(rows_of, read_all, rows))
