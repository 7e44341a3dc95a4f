"""Warns of optimizers that look at a variable as a whole, where that is not a table."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from absl import logging

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.builds import before_builds
from tf_syncrep.python.keras.optimizer_slots import innermost_of
from tf_syncrep.python.keras.tables.stacked_tables import StackedTables, all_made

# Optimizers of Keras whose update of an element depends on all of its variable.
_OF_VARIABLES = ("Adafactor", "Lamb", "Muon")

# The optimizers that have warned. Keras 2 builds them in each step.
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_of_whole_variables() -> None:
    """Makes optimizers that are built warn of this, from now on."""
    before_builds(_look)


def _look(optimizer: Any, variables: Sequence[Any]) -> None:
    kind = type(optimizer).__name__
    clipnorm = getattr(optimizer, "clipnorm", None)
    if (not clipnorm and kind not in _OF_VARIABLES) or any(
        inner is not optimizer for inner in innermost_of(optimizer)
    ):
        return
    trained = {id(compat.native(variable)) for variable in variables}
    names = sorted(_names_of_parts(all_made(), trained))
    if names and optimizer not in _told:
        _told.add(optimizer)
        logging.warning(
            "%s looks at each variable by itself, and tables %s are not in one "
            "variable each: they are stacked, or in parts. What it makes of them "
            "depends on where they lie.%s",
            f"clipnorm={clipnorm} of {kind}" if clipnorm else kind,
            names,
            " global_clipnorm and clipvalue do not." if clipnorm else "",
        )


def _names_of_parts(all_tables: Iterable[StackedTables], trained: set[int]):
    for tables in all_tables:
        for slab in tables.slabs:
            is_one = len(slab.tables) == 1 and slab.num_parts == 1
            parts = map(compat.native, tables.trained(slab))
            if not is_one and any(id(part) in trained for part in parts):
                yield from (table.name for table in slab.tables)
