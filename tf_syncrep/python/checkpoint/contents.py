"""What a checkpoint holds, task by task.

This module does not depend on Keras. Names are those under which
`tf.train.load_checkpoint` finds the saved values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.keyed_tables import KeyedTable

# Variables of at least this size are written row by row, so that they need no copy.
BYTES_OF_TABLE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows of one table that are next to each other in one variable.

    Row `k` of the piece is row `first + k * stride` of the table.

    `first`: the first row of the piece, as a row of the table. `stride`: how many
    pieces the table has; 1 if the piece is a range of rows. `stored_rows`: how many
    rows the table has in the files of a warm start, and -1 otherwise.
    """

    first: int
    num_rows: int
    stride: int
    vocabulary: int
    names: tuple[str, ...]
    uses: int | None = None
    stored_rows: int = -1


@dataclasses.dataclass(frozen=True)
class Group:
    """Variables with equally many rows: one that is trained, and its slots."""

    variables: tuple[Any, ...]
    pieces: tuple[Piece, ...]


@dataclasses.dataclass
class Share:
    """The variables of one task."""

    device: str
    groups: list[Group] = dataclasses.field(default_factory=list)
    wholes: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def pieces(self) -> list[tuple[int, ...]]:
        """The pieces in the form that the ops take."""
        return [
            (
                number,
                piece.num_rows,
                piece.first,
                piece.stride,
                piece.vocabulary,
                *(() if piece.uses is None else (piece.uses,)),
            )
            for number, group in enumerate(self.groups)
            for piece in group.pieces
        ]

    @property
    def piece_names(self) -> list[str]:
        """The names of the pieces, in the form that the ops take."""
        return [
            name
            for group in self.groups
            for piece in group.pieces
            for name in piece.names
        ]

    @property
    def stored_rows(self) -> list[int]:
        """How many rows the tables have in the files, where they may differ."""
        found = [p.stored_rows for group in self.groups for p in group.pieces]
        return [] if -1 in found else found

    @property
    def handles(self) -> list[list[Any]]:
        """The handles of the groups' variables; reference variables have none."""
        return [
            [getattr(v, "handle", v) for v in group.variables] for group in self.groups
        ]

    def without_keyed(self) -> Share:
        """Returns the same share without tables whose rows are found by keys."""
        groups = [
            group
            for group in self.groups
            if all(piece.uses is None for piece in group.pieces)
        ]
        return Share(self.device, groups, self.wholes)


@dataclasses.dataclass(frozen=True)
class OfPart:
    """A variable that belongs to one part of a table, but has no rows.

    If a table is restored into other parts than it was saved from, each part gets the
    smallest saved value of all parts. For a power of beta this is the value of the part
    with the most steps.
    """

    variable: Any
    tables: tuple[str, ...]
    part: int
    num_parts: int

    @property
    def names(self) -> list[str]:
        """The names under which the variable is saved, one for each table."""
        return [f"{table}/{self.part}-of-{self.num_parts}" for table in self.tables]

    def stored_names(self, stored: Collection[str]) -> list[str]:
        """Returns the names in a checkpoint whose smallest value the variable gets.

        Returns its own names if the tables had as many parts, otherwise those of all
        parts.
        """
        found = [name for name in self.names if name in stored]
        others = {*self.tables} - {x.rpartition("/")[0] for x in found}
        if others:  # There may be a thousand tables: it looks at each name once.
            found += [x for x in stored if x.rpartition("/")[0] in others]
        return found


@dataclasses.dataclass
class Contents:
    """Everything that a checkpoint holds.

    `of_parts`: variables of parts; they are also among the wholes of the shares. Each
    is an `OfPart`, or has its `variable`, `names` and `stored_names`. `copies`: pairs
    of a variable that is saved and another copy of it. `weights`: names of wholes and
    tables that are trained. If one is not finite, the training has come to nothing.
    `tables`: names of those that are looked up in by rows. `trainers`: the class of the
    optimizer that has slots of a variable, by the variable's name.
    """

    of_parts: list[Any] = dataclasses.field(default_factory=list)
    copies: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    keyed_tables: list[KeyedTable] = dataclasses.field(default_factory=list)
    weights: list[str] = dataclasses.field(default_factory=list)
    tables: set[str] = dataclasses.field(default_factory=set)
    trainers: dict[str, str] = dataclasses.field(default_factory=dict)
    _shares: dict[str, Share] = dataclasses.field(default_factory=dict)

    @property
    def shares(self) -> list[Share]:
        """The shares of the tasks that have variables."""
        return list(self._shares.values())

    @property
    def notes(self) -> dict[str, Any]:
        """What a checkpoint notes, for JSON, so that others can take what fits them.

        A table in parts is stored with rows of padding, so its number is noted.
        """
        rows = {
            piece.names[0]: piece.vocabulary
            for share in self.shares
            for group in share.groups
            for piece in group.pieces
            if piece.stride > 1
        }
        return {"rows": rows, "trainers": self.trainers}

    @property
    def names(self) -> set[str]:
        """All names, except those that depend on the number of parts."""
        of_parts = {name for x in self.of_parts for name in x.names}
        shares = [share.without_keyed() for share in self.shares]
        found = {name for share in shares for name in share.wholes}
        found.update(name for share in shares for name in share.piece_names)
        return found - of_parts

    def add_group(self, variables: Sequence[Any], pieces: Iterable[Piece]) -> None:
        """Adds variables that are written row by row."""
        originals = tuple(self._original(variable) for variable in variables)
        share = self._share(originals[0])
        share.groups.append(Group(originals, tuple(pieces)))

    def add_whole(self, name: str, variable: Any) -> None:
        """Adds a variable that is written at once."""
        original = self._original(variable)
        self._share(original).wholes[name] = original

    def add_of_part(self, of_part: OfPart) -> None:
        """Adds a variable of a part of tables."""
        original = self._original(of_part.variable)
        self.of_parts.append(dataclasses.replace(of_part, variable=original))
        for name in of_part.names:
            self._share(original).wholes[name] = original

    def _share(self, variable: Any) -> Share:
        device = cpu_of(variable)
        return self._shares.setdefault(device, Share(device))

    def _original(self, variable: Any) -> Any:
        """Returns the first copy of a variable of which a strategy keeps several."""
        copies = getattr(variable, "values", None)
        if not isinstance(copies, (tuple, list)):
            return variable
        self.copies += [(copies[0], copy) for copy in copies[1:]]
        return copies[0]


def cpu_of(variable: Any) -> str:
    """Returns the CPU of the task that a variable is on."""
    spec = tf.DeviceSpec.from_string(variable.device)
    return spec.replace(device_type="CPU", device_index=0).to_string()


def is_table(variable: Any) -> bool:
    """Returns whether a variable is so large that it is written row by row."""
    shape, dtype = variable.shape, variable.dtype.base_dtype
    if not shape.is_fully_defined() or shape.rank == 0 or shape[0] < 2:
        return False
    if not (dtype.is_floating or dtype.is_integer):
        return False
    return shape.num_elements() * dtype.size >= BYTES_OF_TABLE


def whole_piece(num_rows: int, names: Sequence[str]) -> Piece:
    """Returns the one piece of a variable that is a table by itself."""
    return Piece(0, num_rows, 1, num_rows, tuple(names))
