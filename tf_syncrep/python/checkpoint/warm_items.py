"""The variables of a model with what belongs to them, and what is taken for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Contents, OfPart, Piece
from tf_syncrep.python.checkpoint.keyed_tables import KeyedTable
from tf_syncrep.python.checkpoint.source import without_part


@dataclasses.dataclass(frozen=True)
class Place:
    """Rows of a table and of its slots on one device, which begin at row `begin`."""

    device: str
    variables: Mapping[str, Any]
    piece: Piece
    begin: int


@dataclasses.dataclass
class Item:
    """A variable with its slots.

    `arrays`: the variable and its slots of rows, with the first variable of each, by
    name. `of_part`: names of slots without rows. `is_table`: whether it is looked up in
    by rows. `places`, `keyed`: where the rows are, if it is written row by row.
    """

    name: str
    is_table: bool
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)
    of_part: set[str] = dataclasses.field(default_factory=set)
    places: list[Place] = dataclasses.field(default_factory=list)
    keyed: KeyedTable | None = None

    @property
    def variable(self) -> Any:
        """The first variable without its slots."""
        return self.arrays[self.name]

    @property
    def num_rows(self) -> int:
        """How many rows it has; those of a table that grows are not known."""
        if self.keyed is not None:
            return 0
        if self.places:
            return self.places[0].piece.vocabulary
        return int(self.variable.shape[0]) if len(self.variable.shape) else 1


@dataclasses.dataclass(frozen=True)
class Taken:
    """What is taken for a variable: `rows` of `of_rows` rows of `arrays` of the model.

    `dtype`: the vectors' in the source. `left_out`: what there is to say of what is not
    taken; `notes`: of what is. `move`: takes it, if tasks do not read it by themselves.
    """

    arrays: Sequence[str]
    dtype: tf.DType
    rows: int
    of_rows: int
    left_out: Sequence[str]
    notes: Sequence[str] = ()
    move: Callable[[], None] | None = None


def items_of(contents: Contents, base_of: Callable[[str], str]) -> dict[str, Item]:
    """Returns a model's variables by name; `base_of`: as that of `Matching`."""
    items: dict[str, Item] = {}
    of_parts = {name for x in contents.of_parts for name in x.names}

    def item_of(array: str) -> Item:
        name = base_of(array)
        return items.setdefault(name, Item(name, name in contents.tables))

    for share in contents.shares:
        for group in share.without_keyed().groups:
            begin = 0
            for piece in group.pieces:
                variables = dict(zip(piece.names, group.variables, strict=True))
                item = item_of(piece.names[0])
                item.arrays |= variables
                item.places.append(Place(share.device, variables, piece, begin))
                begin += piece.num_rows
        for name, variable in share.wholes.items():
            if name not in of_parts:
                item_of(name).arrays[name] = variable
    for table in contents.keyed_tables:
        item = item_of(table.name)
        item.keyed = table
        vectors, _, _, *slots = zip(table.arrays, table.parts[0].variables, strict=True)
        item.arrays |= [vectors, *slots]
    for x in contents.of_parts:
        if isinstance(x, OfPart):
            for name in map(without_part, x.names):
                item_of(name).of_part.add(name)
    return items
