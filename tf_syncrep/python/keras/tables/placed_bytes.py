"""Tells users which parameter server holds what."""

from __future__ import annotations

import weakref
from typing import Any

from tensorflow.compat.v1 import logging

from tf_syncrep.python.base.sizes import largest, mebibytes, num_bytes
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.cluster import num_tasks
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
    memory for rows in use, which `stats` of tables tell. Variables of one name are
    added up. Nothing disturbs training: if an optimizer cannot be read, a line says so.
    """
    try:
        return _placed_bytes(model)
    except Exception as error:
        logging.warning("What servers hold is not known: %s", error)
        return {}


def _placed_bytes(model: Any) -> dict[str, dict[str, int]]:
    variables = [(_name(v), compat.native(v)) for v in model.variables]
    of_growing = {
        id(compat.native(v))
        for tables in tables_with(DynamicTables, [native for _, native in variables])
        for v in tables.all_variables()
    }
    # The name and the variable, each once.
    found = {id(native): (name, native) for name, native in variables}
    for optimizer in optimizers_of(model):
        slots = slots_by_variable(optimizer, model.variables)
        for name, native in variables:
            for slot in slots[id(native)].values():
                found.setdefault(id(slot), (name, slot))
                if id(native) in of_growing:
                    of_growing.add(id(slot))
        for variable in variables_of(optimizer):
            native = compat.native(variable)
            found.setdefault(id(native), (_name(variable), native))
    placed: dict[str, dict[str, int]] = {}
    for key, (name, whole) in found.items():
        for part in getattr(whole, "variables", None) or [whole]:
            task = task_of(part.device)
            if key not in of_growing and task is not None and task[0] == "ps":
                of_server = placed.setdefault(f"ps:{task[2]}", {})
                of_server[name] = of_server.get(name, 0) + num_bytes(part)
    return dict(sorted(placed.items(), key=lambda item: int(item[0][3:])))


def tell_placement(model: Any) -> None:
    """Logs once for a model what each of several servers holds."""
    if model in _told or num_tasks("ps") < 2:
        return
    _told.add(model)
    lines = [
        f"{server} {mebibytes(sum(sizes.values()))} ({largest(sizes)})"
        for server, sizes in placed_bytes(model).items()
    ]
    if len(lines) > _LOGGED_SERVERS:
        lines[_LOGGED_SERVERS:] = [f"and {len(lines) - _LOGGED_SERVERS} more"]
    if lines:
        logging.info("Variables by parameter server: %s", "; ".join(lines))


def _name(variable: Any) -> str:
    name = getattr(variable, "path", variable.name)
    return name.partition(":")[0]
