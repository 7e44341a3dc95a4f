"""Tells users which parameter server holds what."""

from __future__ import annotations

import weakref
from typing import Any

from tensorflow.compat.v1 import logging

from tf_syncrep.python.base.sizes import largest, mebibytes, num_bytes
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizer_slots import slots_by_variable, variables_of
from tf_syncrep.python.keras.parts import optimizers_of
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.stacked_tables import tables_with
from tf_syncrep.python.sync.gate_placement import task_of

# So many servers are in the log; a report has all.
_LOGGED_SERVERS = 8
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def placed_bytes(model: Any) -> dict[str, dict[str, int]]:
    """Returns the bytes on each parameter server ("ps:0"), by variables.

    Slots that exist count with their variable. Tables that grow are left out: they take
    memory for rows in use, which `stats` of tables tell. Others may share a name.
    """
    variables = list(model.variables)
    native = [compat.native(v) for v in variables]
    growing = {
        id(compat.native(v))
        for tables in tables_with(DynamicTables, native)
        for v in tables.all_variables()
    }
    slots: dict[int, list[Any]] = {}
    for optimizer in optimizers_of(model):
        for owner, found in slots_by_variable(optimizer, variables).items():
            slots.setdefault(owner, []).extend(found.values())
    of_growing = {id(slot) for owner in growing for slot in slots.get(owner, ())}
    names = {
        id(x): _name(variable)
        for variable, own in zip(variables, native, strict=True)
        for x in (own, *slots.get(id(own), ()))
    }
    for optimizer in optimizers_of(model):
        for variable in variables_of(optimizer):
            names.setdefault(id(compat.native(variable)), _name(variable))
            native.append(compat.native(variable))
    everything = {id(x): x for of_one in slots.values() for x in of_one}
    everything |= {id(x): x for x in native}
    placed: dict[str, dict[str, int]] = {}
    for key, whole in everything.items():
        if key in growing or key in of_growing:
            continue
        for part in getattr(whole, "variables", None) or [whole]:
            task = task_of(part.device)
            if task is not None and task[0] == "ps":
                of_server = placed.setdefault(f"ps:{task[2]}", {})
                of_server[names[key]] = of_server.get(names[key], 0) + num_bytes(part)
    return dict(sorted(placed.items(), key=lambda item: int(item[0][3:])))


def tell_placement(model: Any) -> None:
    """Logs once for a model what each of several servers holds."""
    if model in _told:
        return
    _told.add(model)
    placed = placed_bytes(model)
    if len(placed) > 1:
        lines = [
            f"{server} {mebibytes(sum(sizes.values()))} ({largest(sizes)})"
            for server, sizes in placed.items()
        ]
        if len(lines) > _LOGGED_SERVERS:
            lines[_LOGGED_SERVERS:] = [f"and {len(lines) - _LOGGED_SERVERS} more"]
        logging.info("Variables by parameter server: %s", "; ".join(lines))


def _name(variable: Any) -> str:
    name = getattr(variable, "path", variable.name)
    return name.partition(":")[0]
