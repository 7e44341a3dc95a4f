"""Where tables are on parameter servers: stacked into slabs, which are split by rows.

This module does not use TensorFlow.

A slab holds the rows of tables of one width, dtype and optimizer, one table after the
other, and has one part on each parameter server: row `g` of the stack is row
`g // num_parts` of part `g % num_parts`. So the numbers of rows of any two parts
differ by at most one, and the rows of each table, popular ones too, are spread over all
parts. This is the "mod" strategy of `tf.nn.embedding_lookup`, over all tables at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Sequence

# How many rows a part may have, since rows are counted by int32.
MOST_ROWS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of vectors.

    `optimizer`: what makes the table's own optimizer; None if the model's optimizer
    trains the table. Only tables for which this is equal are stacked.
    """

    name: str
    vocabulary_size: int
    width: int
    dtype: str = "float32"
    grows: bool = False
    optimizer: Hashable = None
    trainable: bool = True


@dataclasses.dataclass(frozen=True)
class TablePart:
    """The rows of a table that are in one part of its slab.

    They are rows `first_id`, `first_id + num_parts`, and so on of the table, and lie
    next to each other in the part.

    `num_rows`: how many there are; may be 0.
    """

    table: Table
    first_id: int
    begin: int
    num_rows: int


class _Stack:
    """Tables one after the other: the rows of all, or those of any one part."""

    def __init__(self, name: str, tables: Sequence[Table], num_parts: int):
        """Stacks tables."""
        self.name = name
        self.tables = tuple(tables)
        self.num_parts = num_parts
        self.width = tables[0].width
        self.dtype = tables[0].dtype
        self.optimizer = tables[0].optimizer
        self.trainable = tables[0].trainable
        self.num_rows = 0
        self._first_rows: dict[str, int] = {}
        for table in self.tables:
            self._first_rows[table.name] = self.num_rows
            self.num_rows += self.capacity(table)

    def capacity(self, table: Table) -> int:
        """Returns how many rows of a table there is room for in the stack."""
        return table.vocabulary_size

    def first_row(self, table: Table) -> int:
        """Returns where the rows of a table begin in the stack."""
        return self._first_rows[table.name]

    def part_name(self, part_number: int) -> str:
        """Returns the name of a part's variable."""
        return f"{self.name}_{part_number}" if self.num_parts > 1 else self.name


class Slab(_Stack):
    """Stacked tables, and how they are split into parts."""

    def part_rows(self, part_number: int) -> int:
        """Returns how many rows a part has."""
        return self._rows_before(self.num_rows, part_number)

    def part(self, table: Table, part_number: int) -> TablePart:
        """Returns the rows of a table that are in a part."""
        first = self.first_row(table)
        begin = self._rows_before(first, part_number)
        end = self._rows_before(first + table.vocabulary_size, part_number)
        first_id = begin * self.num_parts + part_number - first
        return TablePart(table, first_id, begin, end - begin)

    def parts(self, part_number: int) -> list[TablePart]:
        """Returns the rows that are in a part, by table, in their order there."""
        return [self.part(table, part_number) for table in self.tables]

    def _rows_before(self, row: int, part_number: int) -> int:
        """Returns how many of the first `row` rows of the stack are in a part."""
        return max(0, -(-(row - part_number) // self.num_parts))


class DynamicSlab(_Stack):
    """Stacked tables that grow, and how they are split into parts.

    A key's hash decides which part has the key, so that parts have different numbers of
    rows; each has room for a few more than its share. Each part is such a stack, in
    which the rows of a table are next to each other, at the same place.
    """

    def __init__(self, name: str, tables: Sequence[Table], num_parts: int):
        """Stacks tables that grow."""
        super().__init__(name, tables, num_parts)
        if self.num_rows > MOST_ROWS:
            raise ValueError(
                f"Tables that are stacked must have at most {MOST_ROWS:,} rows in a "
                f"part. Received: {[table.name for table in tables]} with "
                f"{self.num_rows:,} rows; use other table_stacking"
            )

    def index(self, table: Table) -> int:
        """Returns the number of a table among those of the slab."""
        return self.tables.index(table)

    def capacity(self, table: Table) -> int:
        """Returns how many rows of a table a part has room for."""
        if self.num_parts == 1:
            return table.vocabulary_size
        share = table.vocabulary_size / self.num_parts
        # Four standard deviations above the mean are hardly ever exceeded.
        slack = 4 * math.ceil(math.sqrt(share))
        return min(table.vocabulary_size, math.ceil(share) + slack)


def stack(
    tables: Iterable[Table],
    num_parts: int,
    stacking: str | Sequence[Sequence[str]] | None = "auto",
) -> list[Slab | DynamicSlab]:
    """Makes slabs of tables.

    Tables that grow are never stacked with others.

    `stacking`: `"auto"` to stack all tables of one width, dtype and optimizer, those
    that do not train by themselves; None to stack none; or the names of tables to
    stack: a list of lists, or one list. Tables that are not named are slabs by
    themselves. Raises ValueError: two tables have the same name; or `stacking` is none
    of these, names something that is not a table, names a table twice, or stacks tables
    of different width, dtype or optimizer, or tables that train and others.
    """
    tables = list(tables)
    by_name = {table.name: table for table in tables}
    if len(by_name) != len(tables):
        names = sorted(table.name for table in tables)
        raise ValueError(f"Tables must have different names. Received: {names}")
    group_of = _groups(by_name, stacking)
    groups: dict[object, list[Table]] = {}
    for table in tables:
        groups.setdefault(group_of(table), []).append(table)
    return [
        (DynamicSlab if group[0].grows else Slab)(_slab_name(group), group, num_parts)
        for group in groups.values()
    ]


def _slab_name(tables: Sequence[Table]) -> str:
    first = tables[0].name
    return first if len(tables) == 1 else f"{first}_and_{len(tables) - 1}_more"


def _groups(by_name, stacking):
    """Returns a function of a table, whose result is the same for stacked tables."""
    if stacking == "auto":
        return _kind
    if stacking is None:
        return lambda table: table.name
    if isinstance(stacking, str) or not isinstance(stacking, Sequence):
        raise ValueError(
            "table_stacking must be 'auto', None, or lists of names of tables. "
            f"Received: table_stacking={stacking!r}"
        )
    one_list = all(isinstance(name, str) for name in stacking)
    lists = [stacking] if one_list else stacking
    number_of = {}
    for number, names in enumerate(lists):
        for name in names:
            if name not in by_name or name in number_of:
                raise ValueError(
                    "table_stacking must name tables, each once. Received: "
                    f"{name!r} in table_stacking={stacking!r}"
                )
            number_of[name] = number
        kinds = {_kind(by_name[name])[:2] for name in names}
        if len(kinds) > 1:
            raise ValueError(
                "Tables that are stacked must have one width and dtype. Received: "
                f"{list(names)} of {sorted(kinds)}"
            )
        optimizers = {by_name[name].optimizer for name in names}
        if len(optimizers) > 1:
            raise ValueError(
                "Tables that are stacked must have one optimizer. Received: "
                f"{list(names)} of {sorted(str(x or 'the model') for x in optimizers)}"
            )
        trained = [name for name in names if by_name[name].trainable]
        if trained and len(trained) < len(names):
            raise ValueError(
                "Tables that are stacked must all be trainable, or none of them. "
                f"Received: {list(names)}, of which {trained} are"
            )
        growing = [name for name in names if by_name[name].grows]
        if growing and len(growing) < len(names):
            raise ValueError(
                "Tables that are stacked must all grow, or none of them. Received: "
                f"{list(names)}, of which {growing} grow"
            )
    return lambda table: number_of.get(table.name, table.name)


def _kind(table):
    return table.width, table.dtype, table.grows, table.optimizer, table.trainable
