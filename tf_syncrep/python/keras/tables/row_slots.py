"""The slots that an optimizer keeps beside the rows of tables that grow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizer_slots import (
    are_rows,
    innermost_of,
    slots_by_variable,
    variables_of,
)
from tf_syncrep.python.keras.tables.stacked_tables import StackedTables

# Optimizers of Keras whose slots are not of single rows, with the reason.
_UNFIT = {
    "Adafactor": "it scales a row by means over all rows",
    "ScheduleFreeAdamW": "its momentum begins with the variable's values",
}


@dataclasses.dataclass(frozen=True)
class RowSlot:
    """A slot with as many rows as a part has."""

    kind: str
    variable: Any
    initial: float


def row_slots(
    optimizers: Sequence[Any], tables: StackedTables
) -> dict[int, list[RowSlot]]:
    """Finds the slots of the rows of tables, by the `id` of their part.

    Slots of several optimizers may have the same kind. Raises ValueError: an optimizer
    has slots that do not begin with one number.
    """
    trained = tables.all_trained()
    found: dict[int, list[RowSlot]] = {id(compat.native(x)): [] for x in trained}
    innermost = {id(x): x for outer in optimizers for x in innermost_of(outer)}
    for optimizer in innermost.values():
        by_variable = slots_by_variable(optimizer, trained)
        if not any(by_variable.values()):
            continue
        initial = _initial_values(optimizer, trained[0])
        for variable in trained:
            key = id(compat.native(variable))
            found[key] += [
                RowSlot(kind, slot, initial[kind])
                for kind, slot in by_variable[key].items()
                if are_rows(slot, variable)
            ]
    return found


def refuse_unfit(optimizer: Any) -> None:
    """Raises for an optimizer whose state of a row could not begin anew.

    Those that it wraps or consists of are not looked at: they may train other
    variables, and are built by themselves.
    """
    for name, reason in _UNFIT.items():
        if isinstance(optimizer, getattr(tf.keras.optimizers, name, ())):
            raise ValueError(
                f"An optimizer of tables that grow must not be {name}, since {reason}, "
                "and a row could not begin anew with its next key. Give the tables "
                "another one, such as tfs.keras.AdamAsync. Received: "
                f"{type(optimizer).__name__}"
            )
    if getattr(optimizer, "use_ema", False):
        raise ValueError(
            "An optimizer of tables that grow must be made without use_ema: the "
            "average of a row would begin at zero. Received: "
            f"{type(optimizer).__name__} with use_ema=True"
        )


def _initial_values(optimizer: Any, variable: Any) -> dict[str, float]:
    """Returns the initial values of an optimizer's slots, as a new one makes them."""
    with tf.init_scope(), tf.device("/device:CPU:0"):
        config = optimizer.get_config()
        # So no schedule is made again, and no rate is read from another process.
        config["learning_rate"] = 1.0
        new = type(optimizer).from_config(config)
        few = _few_rows(variable)
        new.build([few])
        slots = slots_by_variable(new, [few])[id(compat.native(few))]
        _refuse_unknown(new, few, slots)
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


def _refuse_unknown(optimizer, few, slots):
    """Raises if an optimizer has values of rows in a variable that is no known slot."""
    known = {id(slot) for slot in slots.values()}
    for other in map(compat.native, variables_of(optimizer)):
        if id(other) not in known and list(other.shape[:1]) == [few.shape[0]]:
            raise ValueError(
                "An optimizer of tables that grow must make its slots of rows by "
                "add_variable_from_reference, in the shape of the variable. Received: "
                f"{other.name!r} of {type(optimizer).__name__}, with shape "
                f"{(*other.shape[1:],)} for each row"
            )


def _few_rows(variable):
    """Returns a small table that an optimizer takes for a part, since it has its name.

    It has a number of rows that nothing else has, and values that tell whether slots
    begin with them.
    """
    width = variable.shape[1]
    shape = (19 if width == 17 else 17, width)
    values = tf.reshape(tf.linspace(0.0, 1.0, shape[0] * width), shape)
    values = tf.cast(values, compat.native(variable).dtype)
    if not compat.IS_KERAS_3:
        return tf.Variable(values, name=variable.name.split(":")[0])
    *scopes, name = variable.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(tf.keras.name_scope(scope))
        return tf.keras.Variable(values, dtype=variable.dtype, name=name)
