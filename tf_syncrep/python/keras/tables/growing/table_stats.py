"""What users are told of tables that grow: sizes, counters, and memory."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizer_slots import are_rows, slots_by_variable
from tf_syncrep.python.keras.tables.growing.dynamic import Dynamic
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.stacked_tables import tables_with
from tf_syncrep.python.keras.tables.trainers import trainers_of

_Of = TypeVar("_Of")


def sizes_in_training_of(model: Any) -> dict[str, Dynamic]:
    """Returns the settings of a model's tables that grow, if they train, by name."""

    def sizes(tables):
        return dict.fromkeys(tables.sizes) | tables.sizes_in_training()

    # Those that do not train count where names are numbered.
    return {name: size for name, size in _of_all(model, sizes).items() if size}


def counters_of(model: Any) -> dict[str, dict[str, int]]:
    """Returns the counters of a model's tables that grow, by their names."""
    return _of_all(model, DynamicTables.stats)


def stats_of(model: Any) -> dict[str, dict[str, int]]:
    """Returns the counters of a model's tables that grow, with their rows' memory."""
    return _of_all(model, with_memory)


def keys_from_nan(model: Any) -> dict[str, int]:
    """Returns the key that a NaN may have become, for each table that has it."""
    casts = (tf.int64.min, tf.int32.min)
    return _of_all(model, lambda tables: tables.holding(casts))


def _of_all(
    model: Any, of_some: Callable[[DynamicTables], Mapping[str, _Of]]
) -> dict[str, _Of]:
    try:
        variables = [compat.native(v) for v in model.variables]
    except ValueError:  # of a Sequential of Keras 2 that is not built
        return {}
    found: dict[str, _Of] = {}
    # Layers may have tables of one name, which checkpoints number in the same way.
    seen: collections.Counter[str] = collections.Counter()
    with compat.apart_from_closures():
        for tables in tables_with(DynamicTables, variables):
            for name, of_table in of_some(tables).items():
                seen[name] += 1
                found[name if seen[name] == 1 else f"{name}#{seen[name]}"] = of_table
    return found


def with_memory(tables: DynamicTables) -> dict[str, dict[str, int]]:
    """Returns counters of tables, with "vector_bytes" and "slot_bytes" of rows in use.

    A row's key and uses lie beside its vector, and count as a part of it.
    """
    stats = tables.stats()
    of_slots = _slot_bytes(tables)
    for slab in tables.slabs:
        part = tables.parts(slab)[0]
        of_vector = sum(map(_bytes_of_row, (part.vectors, part.keys, part.uses)))
        for table in slab.tables:
            counts = stats[table.name]
            counts["vector_bytes"] = counts["rows"] * of_vector
            counts["slot_bytes"] = counts["rows"] * of_slots[id(part.vectors)]
    return stats


def _slot_bytes(tables: DynamicTables) -> dict[int, int]:
    """Returns the bytes of the slots of a row, by the `id` of its part."""
    trained = tables.all_trained()
    slots: dict[int, dict[int, Any]] = {id(compat.native(x)): {} for x in trained}
    for optimizer in trainers_of(tables):
        by_variable = slots_by_variable(optimizer, trained)
        for variable in trained:
            key = id(compat.native(variable))
            # An optimizer and the one around it have the same slots.
            slots[key] |= {
                id(slot): slot
                for slot in by_variable[key].values()
                if are_rows(slot, variable)
            }
    return {key: sum(map(_bytes_of_row, x.values())) for key, x in slots.items()}


def _bytes_of_row(variable: Any) -> int:
    return math.prod(variable.shape[1:]) * variable.dtype.size
