"""The optimizers that train tables that grow, also those that no model has."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.slots import innermost_of
from tf_syncrep.python.keras.tables.row_slots import refuse_averages

if TYPE_CHECKING:
    from tf_syncrep.python.keras.tables.dynamic_tables import DynamicTables

# The optimizers that were built with a part of tables, by the tables.
_trainers: weakref.WeakKeyDictionary[DynamicTables, weakref.WeakSet[Any]] = (
    weakref.WeakKeyDictionary()
)


def note_trainers(tables: DynamicTables) -> None:
    """Notes the optimizers that will be built to train tables.

    An optimizer that keeps averages of all variables is refused then.
    """
    _trainers[tables] = weakref.WeakSet()
    compat.before_builds(_look)


def trainers_of(tables: DynamicTables) -> list[Any]:
    """The optimizers that were built to train tables; none is around another one."""
    return list(_trainers.get(tables, ()))


def _look(optimizer: Any, variables: Sequence[Any]) -> None:
    # Optimizers inside of others are looked at when they are built themselves.
    is_innermost = innermost_of(optimizer)[0] is optimizer
    if not is_innermost or not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        return
    built_with = {id(compat.native(variable)) for variable in variables}
    for tables, trainers in _trainers.items():
        parts = {id(compat.native(part)) for part in tables.all_trained()}
        if parts & built_with:
            refuse_averages([optimizer])
            trainers.add(optimizer)
