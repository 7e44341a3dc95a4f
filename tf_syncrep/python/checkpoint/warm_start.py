"""Takes what fits a model from a checkpoint of another one, by name.

Each task reads its own rows, by the ops of `restore`. Everything is known to fit before
anything is written.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python
from tf_syncrep.python.checkpoint import matching
from tf_syncrep.python.checkpoint.contents import (
    Contents,
    Group,
    OfPart,
    Piece,
    Share,
)
from tf_syncrep.python.checkpoint.directory import DamagedError
from tf_syncrep.python.checkpoint.engine import DAMAGE, reason_of
from tf_syncrep.python.checkpoint.keyed_tables import (
    KeyedTable,
    chunks_of,
    keep_most_used,
    num_of,
)
from tf_syncrep.python.checkpoint.matching import (
    Matching,
    Rename,
    base_of,
    check_rename,
    renamed,
)
from tf_syncrep.python.checkpoint.source import Rows, Source
from tf_syncrep.python.checkpoint.warm_moves import (
    fill_fixed_from_growing,
    fill_growing_from_fixed,
)
from tf_syncrep.python.checkpoint.warm_report import (
    IN_PART,
    INITIAL,
    NOT_USED,
    TAKEN,
    WarmStarted,
    WarmStartReport,
)

_PART = re.compile(r"/\d+-of-\d+$")
# A program says itself how fast it learns.
_SET_BY_PROGRAM = re.compile(r"optimizer/(?:.*/)?learning_rate(?:#\d+)?")
_NOT_THERE, _SKIPPED = "not in the source", "skipped"


@dataclasses.dataclass(frozen=True)
class Terms:
    """What a user allows, by the names of the public arguments."""

    rename: Rename = None
    skip: Any = ()
    truncate: bool = False
    pad: bool = False

    def __post_init__(self):
        check_rename(self.rename)
        for name in ("truncate", "pad"):
            value = as_python(getattr(self, name))
            if not isinstance(value, bool):
                raise ValueError(f"`{name}` must be a bool. Received: {name}={value!r}")
            object.__setattr__(self, name, value)


def arguments_of(given: Any) -> dict[str, Any] | None:
    """Checks the argument `warm_start` of those who write checkpoints.

    Returns it by the names of the public arguments; None stands for none.
    """
    if given is None:
        return None
    arguments = dict(given) if isinstance(given, Mapping) else {"source": given}
    known = ["source", *(x.name for x in dataclasses.fields(Terms))]
    if "source" not in arguments or not set(arguments) <= set(known):
        raise ValueError(
            "`warm_start` must be a source, or a dict with `source` and other arguments"
            f" of that function, {known}. Received: warm_start={given!r}"
        )
    Terms(**{name: x for name, x in arguments.items() if name != "source"})
    return arguments


@dataclasses.dataclass
class _Item:
    """A variable of the model with what belongs to it, by name.

    `arrays`: the variable and its slots of rows, with the first variable of each.
    `of_part`: names of slots without rows.
    """

    name: str
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)
    of_part: set[str] = dataclasses.field(default_factory=set)
    pieces: list[tuple[Share, Group, Piece]] = dataclasses.field(default_factory=list)
    keyed: KeyedTable | None = None


class WarmStart:
    """One warm start of a model's contents; first a plan, then `run`."""

    def __init__(
        self,
        contents: Contents,
        source: Source,
        terms: Terms,
        base_of: Callable[[str], str] = base_of,
    ):
        """Plans it, and writes nothing.

        `base_of`: returns the name of the variable to which an array belongs. Raises
        ValueError: a name in an argument fits nothing, or a table may not be taken as
        it is.
        """
        self._begun = time.monotonic()
        self._contents, self._source, self._terms = contents, source, terms
        self._are_slots_named = base_of is matching.base_of
        self._items = _items_of(contents, base_of)
        own = [x for item in self._items.values() for x in (*item.arrays, item.name)]
        own += [_PART.sub("", x) for item in self._items.values() for x in item.of_part]
        self._matching = Matching(own, source.names, terms.rename, terms.skip, base_of)
        self._lines: list[WarmStarted] = []
        # By names of the model: those in the files, and the number of rows there.
        self._stored: dict[str, str] = {}
        self._num_stored: dict[str, int] = {}
        self._padded: list[tuple[Any, str]] = []
        self._moves: list[Callable[[], None]] = []
        self._with_slots: set[str] = set()
        for item in self._items.values():
            self._plan(item)
        of_parts_used: set[str] = set()
        self._of_parts = self._plan_of_parts(of_parts_used)
        unused = self._matching.stored - self._matching.used - of_parts_used
        for name in sorted(unused):
            self._lines.append(WarmStarted(name, NOT_USED))

    def _plan(self, item: _Item) -> None:
        name = item.name
        stored = self._matching.source_of(name)
        if _SET_BY_PROGRAM.fullmatch(name):
            self._say_initial(item, stored, "as the program sets it")
        elif self._matching.is_skipped(name):
            self._say_initial(item, stored, _SKIPPED)
        elif stored is None:
            self._say_initial(item, None, _NOT_THERE)
        elif item.keyed is not None:
            self._plan_keyed(item, stored)
        elif stored in self._source.keyed:
            self._plan_from_keyed(item, stored)
        elif stored not in self._source.shapes:
            self._say_initial(item, None, _NOT_THERE)
        elif item.pieces:
            self._plan_rows(item, stored)
        else:
            self._plan_whole(item, stored)

    # --- Tables of a fixed size, and large variables ---

    def _plan_rows(self, item: _Item, stored: str) -> None:
        name, vocabulary = item.name, item.pieces[0][2].vocabulary
        is_table = name in self._contents.tables
        variable = item.arrays[name]
        found = self._rows_of(name, variable, is_table)
        fits = found is not None and _fits(found, variable)
        if not is_table and not (
            fits
            and found.num == vocabulary
            and found.dtype == variable.dtype.base_dtype
        ):
            self._plan_whole(item, stored)
            return
        if not fits:
            self._say_initial(item, stored, self._other_shape(stored, variable))
            return
        if found.num > vocabulary and not self._terms.truncate:
            raise ValueError(
                "A table must have as many rows as in the source, or more, if "
                f"`truncate` is not True. Received: {name} of {vocabulary:,} rows, "
                f"where {stored} has {found.num:,}"
            )
        slots, notes = self._slots(item, stored)
        taken = [name, *slots]
        for array in taken:
            self._stored[array] = self._name_of(array)
        self._num_stored[name] = found.num
        is_part = bool(notes)
        if found.num > vocabulary:
            is_part = True
            notes.append(f"{found.num - vocabulary:,} of {found.num:,} rows left out")
        notes += _conversion(found.dtype, variable)
        num = min(found.num, vocabulary)
        self._say(item, stored, num, vocabulary, taken, notes, is_part)

    def _rows_of(self, array: str, variable: Any, is_table: bool) -> Rows | None:
        row_dims = len(variable.shape) - 1
        return self._source.rows(self._name_of(array), row_dims, is_table)

    def _name_of(self, array: str) -> str:
        """Returns the name of an array in the source, whose variable is there."""
        return self._matching.source_of(array) or ""

    # --- Slots ---

    def _slots(
        self, item: _Item, stored: str, fits: Callable[[str, Any], bool] | None = None
    ) -> tuple[list[str], list[str]]:
        """Returns the slots that are taken, and what there is to say of others.

        All or none are: some alone would be no state of the optimizer. `fits`: whether
        an array fits a variable.
        """
        own = [x for x in item.arrays if x != item.name]
        if not own and not item.of_part:
            return [], []
        is_table = item.name in self._contents.tables

        def fits_by_rows(array: str, variable: Any) -> bool:
            found = self._rows_of(array, variable, is_table)
            return found is not None and _fits(found, variable)

        why = self._why_anew(item, stored)
        for array in own:
            if why is None and self._matching.is_skipped(array):
                why = _SKIPPED
            if why is None and not (fits or fits_by_rows)(array, item.arrays[array]):
                why = f"{array} has another shape there"
        if why is not None:
            return [], [f"slots begin anew: {why}"]
        self._with_slots.add(item.name)
        return own, []

    def _why_anew(self, item: _Item, stored: str) -> str | None:
        """Says why another optimizer's slots are not those of a variable."""
        trainer = self._contents.trainers.get(item.name)
        trainer_there = self._source.trainers.get(stored)
        if trainer and trainer_there and trainer != trainer_there:
            return f"they are of {trainer_there}, not of {trainer}"
        if self._source.without_slots:
            return "the source does not name them"
        if not self._are_slots_named:
            missing = [x for x in item.arrays if not self._name_of(x)]
            return f"{missing[0]} is {_NOT_THERE}" if missing else None
        kinds = {x[: -len(item.name)] for x in item.arrays if x != item.name}
        kinds |= {_PART.sub("", x)[: -len(item.name)] for x in item.of_part}
        there = {x[: -len(stored)] for x in self._source.names if _is_slot(x, stored)}
        if kinds != there:
            return f"there are {_listed(there)}, here {_listed(kinds)}"
        return None

    def _plan_of_parts(self, used: set[str]) -> list[tuple[Any, Any]]:
        """Finds values of slots without rows, whose parts are others in the source.

        Adds their names there to `used`.
        """
        found = []
        last = self._source.readers[self._source.path]
        by_new_name = {}
        if not self._are_slots_named:
            names = self._source.shapes
            by_new_name = {renamed(x, self._terms.rename): x for x in names}
        for x in self._contents.of_parts:
            if isinstance(x, OfPart):
                tables = tuple(
                    self._name_of(table)
                    for table in x.tables
                    if base_of(table) in self._with_slots
                )
                stored = dataclasses.replace(x, tables=tables)
                names = stored.stored_names(self._source.shapes) if tables else []
            elif any(self._matching.is_skipped(name) for name in x.names):
                names = []
            else:
                names = [by_new_name[name] for name in x.stored_names(by_new_name)]
            used.update(names)
            if names:
                values = [last.get_tensor(name) for name in names]
                found.append((x.variable, min(values, key=lambda value: value.min())))
        return found

    # --- What is read at once ---

    def _plan_whole(self, item: _Item, stored: str) -> None:
        variable = item.arrays[item.name]

        def fits(array: str, of_model: Any) -> bool:
            name = self._name_of(array)
            return name in self._source.shapes and self._is_block(name, of_model)

        if not fits(item.name, variable):
            why = self._other_shape(stored, variable)
            self._say_initial(item, stored, why)
            return
        slots, notes = self._slots(item, stored, fits)
        taken = [item.name, *slots]
        for array in taken:
            name, of_model = self._name_of(array), item.arrays[array]
            shape, dtype = self._source.whole(name)
            is_equal = shape == tuple(of_model.shape)
            if is_equal and dtype == of_model.dtype.base_dtype and not item.pieces:
                self._stored[array] = name
            else:
                self._padded.append((of_model, name))
        shape, dtype = self._source.whole(stored)
        own = tuple(variable.shape)
        if shape != own:
            notes.append(f"the common block of {_shown(shape)} and {_shown(own)}")
        is_part = bool(notes)
        notes += _conversion(dtype, variable)
        of_rows = own[0] if own else 1
        num = min(of_rows, shape[0]) if own else 1
        self._say(item, stored, num, of_rows, taken, notes, is_part)

    def _is_block(self, name: str, variable: Any) -> bool:
        """Returns whether a variable in the source has a block that is taken."""
        shape, dtype = self._source.whole(name)
        own = tuple(variable.shape)
        if not _is_convertible(dtype, variable.dtype.base_dtype):
            return False
        return shape == own or (self._terms.pad and len(shape) == len(own) > 0)

    def _other_shape(self, stored: str, variable: Any) -> str:
        shape, dtype = self._source.whole(stored)
        return (
            f"it is {dtype.name}{_shown(shape)} there, and "
            f"{variable.dtype.base_dtype.name}{_shown(variable.shape)} here"
        )

    # --- Tables that grow, here or in the source ---

    def _plan_keyed(self, item: _Item, stored: str) -> None:
        """Takes rows for a table that grows, by key or by number."""
        table, saved = item.keyed, self._source.keyed.get(stored)
        assert table is not None
        variable = item.arrays[item.name]
        if saved is None:
            self._plan_keyed_from_rows(item, stored)
            return

        def fits(array: str, of_model: Any) -> bool:
            return _fits_row(saved["rows"].get(self._name_of(array)), of_model)

        if not fits(item.name, variable):
            why = _other_row(saved["rows"][stored], variable)
            self._say_initial(item, stored, why)
            return
        slots, notes = self._slots(item, stored, fits)
        arrays = [*table.arrays[:3], *slots]
        names = [self._name_of(array) for array in arrays]
        taking = _taking(table, arrays, names)
        parts, readers = table.parts, self._source.readers
        chunks = [
            *chunks_of(names, saved["num_parts"], readers, table.owners, len(parts))
        ]
        num = int(sum(num_of(chunks, len(parts))))
        keep_most_used(chunks, [part.num_rows for part in parts])
        kept = int(sum(num_of(chunks, len(parts))))
        if kept < num:
            notes.append(f"the {num - kept:,} least used of {num:,} rows left out")
        is_part = bool(notes)
        dtypes = [tf.as_dtype(saved["rows"][name][0]) for name in names]
        notes += _conversion(dtypes[0], variable)
        self._moves.append(lambda: taking.restore(chunks, dtypes))
        self._say(item, stored, kept, kept, arrays, notes, is_part)

    def _plan_keyed_from_rows(self, item: _Item, stored: str) -> None:
        """Takes rows of a table of fixed size; their numbers are the keys."""
        table = item.keyed
        assert table is not None
        variable = item.arrays[item.name]
        found = self._rows_of(item.name, variable, True)
        if found is None or not _fits(found, variable):
            self._say_initial(item, stored, self._other_shape(stored, variable))
            return
        owners = table.owners(np.arange(found.num))
        most = np.bincount(owners, minlength=len(table.parts))
        for part, num in zip(table.parts, most, strict=True):
            if num > part.num_rows:
                raise ValueError(
                    "A table that grows must have room for all rows of a table of "
                    f"fixed size: make it with a larger max_rows. Received: {item.name}"
                    f" with room for {part.num_rows:,} of one part, where {stored} has "
                    f"{num:,} of {found.num:,} rows"
                )
        slots, notes = self._slots(item, stored)
        is_part = bool(notes)
        arrays = [item.name, *slots]
        taking = _taking(table, arrays, [self._name_of(array) for array in arrays])
        notes.append("the number of a row is its key")
        notes += _conversion(found.dtype, variable)
        self._moves.append(lambda: fill_growing_from_fixed(taking, self._source, found))
        self._say(item, stored, found.num, found.num, arrays, notes, is_part)

    def _plan_from_keyed(self, item: _Item, stored: str) -> None:
        """Takes rows of a table that grows for one of fixed size, by their keys."""
        saved, variable = self._source.keyed[stored], item.arrays[item.name]

        def fits(array: str, of_model: Any) -> bool:
            return _fits_row(saved["rows"].get(self._name_of(array)), of_model)

        if not item.pieces or not fits(item.name, variable):
            why = _other_row(saved["rows"][stored], variable)
            self._say_initial(item, stored, why)
            return
        slots, notes = self._slots(item, stored, fits)
        arrays = [item.name, *slots]
        pieces = [piece for _, _, piece in item.pieces]
        owner_of = np.empty(pieces[0].stride, np.int64)
        owner_of[[piece.first for piece in pieces]] = range(len(pieces))
        names = [
            *(self._name_of(x) for x in (item.name, f"keys/{item.name}")),
            *(self._name_of(x) for x in (f"uses/{item.name}", *slots)),
        ]
        chunks = [
            *chunks_of(
                names,
                saved["num_parts"],
                self._source.readers,
                lambda keys: owner_of[keys % len(owner_of)],
                len(pieces),
            )
        ]
        vocabulary, left_out = pieces[0].vocabulary, 0
        for chunk in chunks:
            is_row = (chunk.keys >= 0) & (chunk.keys < vocabulary)
            other = chunk.keys[np.any(chunk.masks, axis=0) & ~is_row]
            if other.size and not self._terms.truncate:
                raise ValueError(
                    "A table of fixed size must have a row for each key of a table that"
                    f" grows, if `truncate` is not True. Received: {item.name} of "
                    f"{vocabulary:,} rows, where {stored} has key {other[0]}"
                )
            left_out += other.size
            for mask in chunk.masks:
                mask &= is_row
        if left_out:
            notes.append(f"{left_out:,} keys that are no row left out")
        is_part = bool(notes)
        dtypes = [tf.as_dtype(saved["rows"][name][0]) for name in names]
        notes.append("a key is the number of its row")
        notes += _conversion(dtypes[0], variable)
        places = [
            (share.device, dict(zip(piece.names, group.variables, strict=True)), piece)
            for share, group, piece in item.pieces
        ]
        begins = [_begin_of(group, piece) for _, group, piece in item.pieces]
        self._moves.append(
            lambda: fill_fixed_from_growing(chunks, dtypes, arrays, places, begins)
        )
        num = int(sum(num_of(chunks, len(pieces))))
        self._say(item, stored, num, vocabulary, arrays, notes, is_part)

    # --- What is said and done ---

    def _say_initial(self, item: _Item, stored: str | None, why: str) -> None:
        of_rows = _num_rows(item.arrays[item.name]) if item.keyed is None else 0
        self._lines.append(
            WarmStarted(item.name, INITIAL, stored, 0, of_rows, note=why)
        )

    def _say(
        self,
        item: _Item,
        stored: str,
        rows: int,
        of_rows: int,
        taken: Sequence[str],
        notes: Sequence[str],
        is_part: bool,
    ) -> None:
        size = 0
        for array in taken:
            variable = item.arrays.get(array)
            if variable is not None:
                row = variable.shape[1:] if len(variable.shape) else variable.shape
                size += rows * row.num_elements() * variable.dtype.base_dtype.size
        status = IN_PART if is_part or rows < of_rows else TAKEN
        has_slots = len(item.arrays) > 1 or item.of_part
        if not has_slots and any(_is_slot(x, stored) for x in self._source.names):
            notes = [*notes, "slots in the source are not used"]
        note = "; ".join(notes)
        line = WarmStarted(item.name, status, stored, rows, of_rows, size, note)
        self._lines.append(line)

    @property
    def shares(self) -> dict[str, Share]:
        """What each task reads, by the names in the source."""
        shares = {share.device: self._share(share) for share in self._contents.shares}
        return {
            device: share
            for device, share in shares.items()
            if share.groups or share.wholes
        }

    @property
    def padded(self) -> list[Any]:
        """The variables that are set to their own values and those in the source."""
        return [variable for variable, _ in self._padded]

    def run(self, calls: Any) -> WarmStartReport:
        """Takes what was planned; `calls`: as those of the engine.

        Raises DamagedError: a file is damaged; some may have been taken then.
        """
        try:
            self._run(calls)
        except DAMAGE as error:
            raise DamagedError(
                f"{self._source.path} cannot be read, and some of it may have been "
                f"taken: {error}"
            ) from error
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                f"{self._source.path} does not fit the model: "
                f"{reason_of(error.message)}"
            ) from error
        secs = time.monotonic() - self._begun
        return WarmStartReport(self._source.path, tuple(self._lines), secs)

    def _run(self, calls: Any) -> None:
        if shares := self.shares:
            self._source.take(calls, shares)
        for move in self._moves:
            move()
        calls.assign(
            (variable, _block(calls.read(variable), self._source.read(name)))
            for variable, name in self._padded
        )
        calls.assign(self._of_parts)
        calls.assign((x, calls.read(original)) for original, x in self._contents.copies)

    def _share(self, share: Share) -> Share:
        """Returns what a task reads, by the names in the source."""
        groups = []
        for group in share.without_keyed().groups:
            pieces = tuple(self._piece(piece) for piece in group.pieces)
            if any(piece.names[0] for piece in pieces):
                groups.append(Group(group.variables, pieces))
        wholes = {
            self._stored[name]: variable
            for name, variable in share.wholes.items()
            if name in self._stored
        }
        return Share(share.device, groups, wholes)

    def _piece(self, piece: Piece) -> Piece:
        names = tuple(self._stored.get(name, "") for name in piece.names)
        num = self._num_stored.get(piece.names[0], piece.vocabulary)
        return dataclasses.replace(piece, names=names, stored_rows=num)


def _items_of(contents: Contents, base_of: Callable[[str], str]) -> dict[str, _Item]:
    """Returns a model's variables with what belongs to them, by name."""
    items: dict[str, _Item] = {}
    of_parts = {name for x in contents.of_parts for name in x.names}

    def item_of(name: str) -> _Item:
        return items.setdefault(base_of(name), _Item(base_of(name)))

    for share in contents.shares:
        for group in share.without_keyed().groups:
            for piece in group.pieces:
                item = item_of(piece.names[0])
                item.arrays |= zip(piece.names, group.variables, strict=True)
                item.pieces.append((share, group, piece))
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
            for name in x.names:
                item_of(_PART.sub("", name)).of_part.add(name)
    return items


def _taking(
    table: KeyedTable, arrays: Sequence[str], names: Sequence[str]
) -> KeyedTable:
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


def _begin_of(group: Group, piece: Piece) -> int:
    """Returns where a piece begins in the rows of its group."""
    before = group.pieces[: group.pieces.index(piece)]
    return sum(x.num_rows for x in before)


def _block(values: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Sets the block that both have in common."""
    if values.shape == stored.shape:
        return stored.astype(values.dtype)
    common = tuple(map(slice, np.minimum(values.shape, stored.shape)))
    values = np.array(values)
    values[common] = stored[common]
    return values


def _is_slot(name: str, of: str) -> bool:
    return name.startswith("slots/") and base_of(name) == of


def _fits(rows: Rows, variable: Any) -> bool:
    is_row = rows.shape == tuple(variable.shape[1:])
    return is_row and _is_convertible(rows.dtype, variable.dtype.base_dtype)


def _fits_row(found: Sequence[Any] | None, variable: Any) -> bool:
    """Returns whether rows in a table that grows are those of a variable."""
    if found is None or [*found[1:]] != [*variable.shape[1:]]:
        return False
    return _is_convertible(tf.as_dtype(found[0]), variable.dtype.base_dtype)


def _other_row(found: Sequence[Any], variable: Any) -> str:
    return (
        f"its rows are {found[0]}{_shown(found[1:])} there, and "
        f"{variable.dtype.base_dtype.name}{_shown(variable.shape[1:])} here"
    )


def _is_convertible(dtype: tf.DType, own: tf.DType) -> bool:
    return dtype == own or (dtype.is_floating and own.is_floating)


def _conversion(dtype: tf.DType, variable: Any) -> list[str]:
    own = variable.dtype.base_dtype
    return [] if dtype == own else [f"{dtype.name} became {own.name}"]


def _num_rows(variable: Any) -> int:
    return int(variable.shape[0]) if len(variable.shape) else 1


def _shown(shape: Sequence[Any]) -> str:
    return str([int(x) for x in shape])


def _listed(kinds: set[str]) -> str:
    return ", ".join(sorted(x.split("/")[1] for x in kinds)) or "none"
