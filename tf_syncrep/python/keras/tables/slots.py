"""Slots of an optimizer in files: they are saved by table, whatever its parts are."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizer_slots import are_rows, slots_by_variable
from tf_syncrep.python.keras.tables import misfits
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables, Rows
from tf_syncrep.python.keras.tables.stacked_tables import trained_by

# These follow the key of a slot, for the keys and uses of the rows of a growing table.
KEYS, USES = "%keys", "%uses"


def save(optimizer: Any, store: Any) -> bool:
    """Saves an optimizer that has slots of tables.

    A slot of a part's shape is saved as tables are. Any other slot, such as a power of
    beta, is saved from the part that has made the most steps. Slots of tables that grow
    are saved with the keys of their rows.

    Returns whether it has slots of tables; if not, nothing was saved.
    """
    saved = _slots(optimizer, trained_by(optimizer))
    rows: dict[tuple[int, str], Rows] = {}
    for key, tables, name, slots in saved:
        if not _are_rows(tables, name, slots):
            store[key] = np.min([slot.numpy() for slot in slots], axis=0)
        elif isinstance(tables, DynamicTables):
            of_table = id(tables), name
            if of_table not in rows:
                rows[of_table] = tables.rows_of(name)
            store[key] = tables.values_of(name, rows[of_table], slots)
            store[key + KEYS], store[key + USES] = rows[of_table][:2]
        else:
            store[key] = tables.read(name, slots)
    if saved:
        for number, variable in enumerate(_others(optimizer, saved)):
            store[str(number)] = variable.numpy()
    return bool(saved)


def load(optimizer: Any, store: Any) -> bool:
    """Loads what `save` has saved; returns False if the store has other arrays."""
    trained = trained_by(optimizer)
    # Slots of Keras' own layer, in whose place an Embedding may be, are numbered.
    several = [
        x
        for x in trained
        if isinstance(x, DynamicTables) or not (x.named_by_layer and x.num_parts == 1)
    ]
    return _load(optimizer, trained, store) or _load(optimizer, several, store)


def _load(optimizer, by_name, store):
    """Loads slots of some tables by name, and all other slots by number."""
    saved = _slots(optimizer, by_name)
    others = _others(optimizer, saved)
    keys = {key for key, *_ in saved} | {str(i) for i in range(len(others))}
    keys |= {
        key + kind
        for key, tables, name, slots in saved
        if isinstance(tables, DynamicTables) and _are_rows(tables, name, slots)
        for kind in (KEYS, USES)
    }
    if not saved or keys != set(store.keys()):
        return False
    least: dict[int, tuple[Any, Any]] = {}
    # All are checked before anything is written.
    fitting = []
    for key, tables, name, slots in saved:
        check = functools.partial(_check, store, key, tables, slots)
        if misfits.fits(check, tables, name):
            fitting.append((key, tables, name, slots))
    for key, tables, name, slots in fitting:
        value = store[key][...]
        if _are_rows(tables, name, slots):
            if isinstance(tables, DynamicTables):
                # If the layer was loaded before, its rows stay where they are.
                of_rows = (np.asarray(store[key + x][...]) for x in (KEYS, USES))
                tables.restore(name, *of_rows, value, slots)
            else:
                tables.write(name, value, slots)
            continue
        for slot in slots:
            before = least.get(id(slot), (slot, value))[1]
            least[id(slot)] = (slot, np.minimum(before, value))
    for slot, value in least.values():
        slot.assign(value)
    for number, variable in enumerate(others):
        variable.assign(store[str(number)][...])
    return True


def _check(store, key, tables, slots, name):
    """Raises if a slot of a table in a file has not the shape of these."""
    if not _are_rows(tables, name, slots):
        return
    if not isinstance(tables, DynamicTables):
        tables.check_shape(name, store[key], slots)
        return
    tables.owners(name, np.asarray(store[key + KEYS][...]))
    shape = (*store[key + KEYS].shape, *slots[0].shape[1:])
    if tuple(store[key].shape) != shape:
        raise ValueError(
            f"Slots of table {name!r} must have shape {shape}. Received: slots of "
            f"shape {tuple(store[key].shape)}"
        )


def _slots(optimizer, all_tables):
    """Returns the key, tables, name and slots for each table and kind of slot."""
    found = []
    for number, tables in enumerate(all_tables):
        for name in tables.by_name:
            parts = tables.trained(tables.slab_of(name))
            if not optimizer.has_slots_of(parts[0]):
                continue  # The table has an optimizer of its own.
            by_part = slots_by_variable(optimizer, parts)
            of_parts = [by_part[id(compat.native(part))] for part in parts]
            for kind in of_parts[0]:
                slots = [of_part[kind] for of_part in of_parts]
                key = f"{kind}.{number}.{tables.key_in_files(name)}"
                found.append((key, tables, name, slots))
    return found


def _others(optimizer, saved):
    """Returns the optimizer's variables that belong to no part."""
    of_parts = {id(slot) for *_, slots in saved for slot in slots}
    return [x for x in optimizer.variables if id(compat.native(x)) not in of_parts]


def _are_rows(tables, name, slots):
    return are_rows(slots[0], tables.trained(tables.slab_of(name))[0])
