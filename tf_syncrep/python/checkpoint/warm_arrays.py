"""Which arrays of a source are those of a model: its variables' and their slots'."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Contents, OfPart
from tf_syncrep.python.checkpoint.matching import Matching, Rename, renamed
from tf_syncrep.python.checkpoint.source import Rows, Source
from tf_syncrep.python.checkpoint.warm_items import Item

NOT_THERE, SKIPPED = "not in the source", "skipped"


class Arrays:
    """Finds a model's arrays in a source, by name."""

    def __init__(
        self,
        contents: Contents,
        source: Source,
        matching: Matching,
        are_slots_named: bool,
    ):
        """Knows the names, and which slots the source has."""
        self.source = source
        self._contents, self._matching = contents, matching
        self._are_slots_named = are_slots_named
        # What stands before a variable's name in those of its slots, in the source.
        self._kinds: dict[str, set[str]] = {}
        for name in source.names:
            base = matching.base_of(name)
            if name != base and name.startswith("slots/"):
                self._kinds.setdefault(base, set()).add(name[: -len(base)])
        self._with_slots: set[str] = set()

    def name_of(self, array: str) -> str:
        """Returns the name in the source of an array whose variable is there."""
        return self._matching.source_of(array) or ""

    def rows(self, item: Item, array: str) -> Rows | None:
        """Returns how the source has an array row by row; None if it has other rows."""
        variable = item.arrays[array]
        row_dims = len(variable.shape) - 1
        found = self.source.rows(self.name_of(array), row_dims, item.is_table)
        fits = found is not None and is_row(found.shape, found.dtype, variable)
        return found if fits else None

    def other_shape(self, item: Item, stored: str) -> str:
        """Says that a variable has another shape or dtype in the source."""
        return _other("it is", *self.source.whole(stored), item.variable, 0)

    # --- Slots ---

    def has_slots(self, stored: str) -> bool:
        """Returns whether the source has slots of a variable."""
        return stored in self._kinds

    def slots(
        self, item: Item, stored: str, fits: Callable[[str], Any]
    ) -> tuple[list[str], list[str]]:
        """Returns the slots that are taken, and what there is to say of others.

        All or none are: some alone would be no state of the optimizer.
        """
        own = [x for x in item.arrays if x != item.name]
        if not own and not item.of_part:
            return [], []
        why = self._why_anew(item, stored)
        if why is None and any(map(self._matching.is_skipped, [*own, *item.of_part])):
            why = SKIPPED
        if why is None and (others := [x for x in own if not fits(x)]):
            why = f"{others[0]} has another shape there"
        if why is not None:
            return [], [f"slots begin anew: {why}"]
        self._with_slots.add(item.name)
        return own, []

    def _why_anew(self, item: Item, stored: str) -> str | None:
        """Says why another optimizer's slots are not those of a variable."""
        trainer = self._contents.trainers.get(item.name)
        trainer_there = self.source.trainers.get(stored)
        if trainer and trainer_there and trainer != trainer_there:
            return f"they are of {trainer_there}, not of {trainer}"
        if self.source.without_slots:
            return "the source does not name them"
        if not self._are_slots_named:
            missing = [x for x in item.arrays if not self.name_of(x)]
            return f"{missing[0]} is {NOT_THERE}" if missing else None
        kinds = {x.removesuffix(item.name) for x in {*item.arrays, *item.of_part}}
        there = self._kinds.get(stored, set())
        if kinds - {""} != there:
            return f"there are {_listed(there)}, here {_listed(kinds - {''})}"
        return None

    def of_parts(self, rename: Rename) -> tuple[list[tuple[Any, Any]], set[str]]:
        """Returns slots without rows with values, and the names that were used.

        Tables may have other parts in the source.
        """
        found, used = [], set()
        by_new_name = {}
        if not self._are_slots_named:
            by_new_name = {renamed(x, rename): x for x in self.source.shapes}
        for x in self._contents.of_parts:
            if isinstance(x, OfPart):
                base_of = self._matching.base_of
                tables = [t for t in x.tables if base_of(t) in self._with_slots]
                stored = dataclasses.replace(x, tables=tuple(map(self.name_of, tables)))
                names = stored.stored_names(self.source.shapes) if tables else []
            elif any(map(self._matching.is_skipped, x.names)):
                names = []
            else:
                names = [by_new_name[name] for name in x.stored_names(by_new_name)]
            used.update(names)
            if names:
                values = [*map(self.source.read, names)]
                found.append((x.variable, min(values, key=lambda value: value.min())))
        return found, used


def is_convertible(dtype: tf.DType, variable: Any) -> bool:
    """Returns whether values of a dtype are taken for a variable."""
    own = variable.dtype.base_dtype
    return dtype == own or (dtype.is_floating and own.is_floating)


def is_row(shape: Sequence[int], dtype: tf.DType, variable: Any) -> bool:
    """Returns whether rows are those of a variable."""
    return [*shape] == [*variable.shape[1:]] and is_convertible(dtype, variable)


def other_row(shape: Sequence[int], dtype: tf.DType, variable: Any) -> str:
    """Says that rows of a table that grows are not those of a variable."""
    return _other("its rows are", shape, dtype, variable, 1)


def shown(shape: Sequence[Any]) -> str:
    """Returns a shape as it is said."""
    return str([int(x) for x in shape])


def _other(
    head: str, shape: Sequence[int], dtype: tf.DType, variable: Any, begin: int
) -> str:
    own = variable.dtype.base_dtype
    return (
        f"{head} {dtype.name}{shown(shape)} there, and "
        f"{own.name}{shown(variable.shape[begin:])} here"
    )


def _listed(kinds: set[str]) -> str:
    return ", ".join(sorted(x.split("/")[1] for x in kinds)) or "none"
