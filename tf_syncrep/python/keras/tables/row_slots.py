"""The slots that an optimizer keeps beside the rows of tables that grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.slots import (
    are_rows,
    innermost_of,
    slots_by_variable,
)

if TYPE_CHECKING:
    from tf_syncrep.python.keras.tables.dynamic_tables import DynamicTables

# How many rows the small table has that shows a new optimizer's slots.
_ROWS = 2


@dataclasses.dataclass(frozen=True)
class RowSlot:
    """A slot with as many rows as a part has.

    Attributes:
        variable: TensorFlow's variable.
        initial: the initial value of each element.
    """

    variable: Any
    initial: float


def row_slots(
    optimizers: Sequence[Any], tables: DynamicTables
) -> dict[int, dict[str, RowSlot]]:
    """Finds the slots of the rows of tables.

    Args:
        optimizers: optimizers that are built.
        tables: the tables.

    Returns:
        The slots of each part by name, for the `id` of TensorFlow's variable with its
        vectors.

    Raises:
        ValueError: an optimizer has slots that do not begin with one number.
    """
    trained = tables.all_trained()
    found: dict[int, dict[str, RowSlot]] = {id(compat.native(x)): {} for x in trained}
    for optimizer in _innermost(optimizers):
        by_variable = slots_by_variable(optimizer, trained)
        if not any(by_variable.values()):
            continue
        initial = _initial_values(optimizer, trained[0])
        for variable in trained:
            key = id(compat.native(variable))
            found[key] |= {
                kind: RowSlot(slot, initial[kind])
                for kind, slot in by_variable[key].items()
                if are_rows(slot, variable)
            }
    return found


def all_row_slots(
    optimizers: Sequence[Any], tables: DynamicTables
) -> dict[int, list[RowSlot]]:
    """Finds the slots as `row_slots` does, of all optimizers that train the same rows.

    Slots of several optimizers may have the same name.
    """
    found: dict[int, list[RowSlot]] = {}
    for optimizer in _innermost(optimizers):
        for part, slots in row_slots([optimizer], tables).items():
            found.setdefault(part, []).extend(slots.values())
    return found


def refuse_averages(optimizers: Sequence[Any]) -> None:
    """Raises for an optimizer that keeps averages of all variables."""
    for optimizer in _innermost(optimizers):
        if getattr(optimizer, "use_ema", False):
            raise ValueError(
                "An optimizer of tables that grow must be made without use_ema: the "
                "average of a row would begin at zero. Received: "
                f"{type(optimizer).__name__} with use_ema=True"
            )


def _innermost(optimizers):
    found = {id(x): x for outer in optimizers for x in innermost_of(outer)}
    return list(found.values())


def _initial_values(optimizer: Any, variable: Any) -> dict[str, float]:
    """The initial values of an optimizer's slots, as a new optimizer makes them."""
    with tf.init_scope(), tf.device("/device:CPU:0"):
        config = optimizer.get_config()
        # So no schedule is made again, and no rate is read from another process.
        config["learning_rate"] = 1.0
        new = type(optimizer).from_config(config)
        few = _few_rows(variable)
        new.build([few])
        slots = slots_by_variable(new, [few])[id(compat.native(few))]
        initial = {}
        for kind, slot in slots.items():
            values = np.unique(slot.numpy())
            if len(values) != 1:
                raise ValueError(
                    "Slots of tables that grow must begin with one number. Received: "
                    f"slot {kind!r} of {type(optimizer).__name__}"
                )
            initial[kind] = float(values[0])
    return initial


def _few_rows(variable):
    shape = (_ROWS, *variable.shape[1:])
    values = tf.zeros(shape, compat.native(variable).dtype)
    if compat.IS_KERAS_3:
        return tf.keras.Variable(values, dtype=variable.dtype, name="few_rows")
    return tf.Variable(values, name="few_rows")
