"""Tables that grow in files of Keras, with the key and the place of each row.

Keras saves the slots of its own optimizers as they are, and identifies them by number.
If a file has such slots, rows are restored to the places where they were; otherwise
they are found by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables import misfits, saved_layout
from tf_syncrep.python.keras.tables.growing.dynamic_tables import (
    RESTS,
    DynamicTables,
    Rows,
)
from tf_syncrep.python.keras.tables.setting import being_set
from tf_syncrep.python.keras.tables.stacked_tables import write_rows

# These follow the key of a table, for what is saved of its rows beside the vectors. In
# files no table's name has a percent sign.
_KINDS = ("%keys", "%uses", "%shards", "%rows")
# The key of the layout of all tables.
_LAYOUT = "%dynamic_layout"
# This precedes the numbers of slab and part, for rows that were removed but rest: slots
# of Keras' own optimizers may still hold values of their former keys.
_RESTING = "%resting"


def save(tables: DynamicTables, store: Any) -> None:
    """Saves the rows in use of tables."""
    resting = {}
    for name in tables.by_name:
        rows, resting[name] = tables.rows_and_resting(name)
        key = tables.key_in_files(name)
        store[key] = tables.values_of(name, rows)
        for kind, values in zip(_KINDS, rows, strict=True):
            store[key + kind] = values
    for number, slab in enumerate(tables.slabs):
        for part_number in range(slab.num_parts):
            of_tables = [resting[table.name][part_number] for table in slab.tables]
            store[f"{_RESTING}.{number}.{part_number}"] = np.concatenate(of_tables)
    if tables.by_name:
        store[_LAYOUT] = np.frombuffer(saved_layout.as_json(tables).encode(), np.uint8)


def load(tables: DynamicTables, store: Any, layer: str) -> None:
    """Loads what `save` has saved.

    Raises ValueError: a table is missing, its rows have another width, or there are
    more rows than there is room for; or its rows lay in other parts, and Keras has
    saved slots of them. Nothing was written.
    """
    if not tables.by_name:
        return
    saved = set(store.keys())
    by_name: dict[str, tuple[Rows, Any]] = {}

    def read(name):
        key = tables.key_in_files(name)
        if any(key + kind not in saved for kind in ("", *_KINDS)):
            raise ValueError(
                f"Layer {layer!r} must be loaded from a file with its tables, those "
                f"that grow with their keys. Missing: {name!r}"
            )
        rows = Rows(*(np.asarray(store[key + kind][...]) for kind in _KINDS))
        vectors = np.asarray(store[key][...])
        tables.checked(name, (rows.keys, vectors), rows.uses)
        by_name[name] = rows, vectors

    for name in tables.by_name:
        misfits.fits(read, tables, name)
    if compat.holds_numbered_slots(store):
        saved_as = bytes(np.asarray(store[_LAYOUT][...])).decode()
        layout = saved_layout.as_json(tables)
        if saved_as != layout:
            raise ValueError(
                f"Tables of layer {layer!r} that grow lie in other parts than in the "
                f"file: {layout}; there {saved_as}. Keras would load the "
                "slots of the file's optimizer into those of other rows. "
                "tfs.keras.Checkpoint saves and restores slots of any optimizer in any "
                "layout; or save the file from a model without an optimizer."
            )
        with being_set:
            _load_as_it_was(tables, by_name, store)
        return
    with being_set:
        for name, (rows, vectors) in by_name.items():
            tables.restore(name, rows.keys, rows.uses, vectors)


def _load_as_it_was(
    tables: DynamicTables, by_name: Mapping[str, tuple[Rows, Any]], store: Any
) -> None:
    """Puts each row where it was; the indices are made again from the variables."""
    slots = tables.row_slots()
    for number, slab in enumerate(tables.slabs):
        for part_number, part in enumerate(tables.parts(slab)):
            # Keras may have loaded the slots of the model's optimizer, or does so
            # later. Those of another model's optimizer belong to the former keys.
            others = [
                slot
                for slot in slots[id(part.vectors)]
                if not compat.holds_values_of(slot.variable, store)
            ]
            tables.reset(part, others)
            resting = np.asarray(store[f"{_RESTING}.{number}.{part_number}"][...])
            tables.has_released |= len(resting) > 0
            write_rows(part.uses, resting, np.tile(RESTS, (len(resting), 1)))
            for table in slab.tables:
                rows, vectors = by_name[table.name]
                here = rows.part_numbers == part_number
                for variable, values in (
                    (part.vectors, vectors),
                    (part.keys, rows.keys),
                    (part.uses, rows.uses),
                ):
                    write_rows(variable, rows.rows[here], values[here])
