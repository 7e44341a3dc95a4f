"""Removes rows of tables that grow, between two updates."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.slots import variables_of
from tf_syncrep.python.keras.parts import optimizers_of
from tf_syncrep.python.keras.tables.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.row_slots import RowSlot, row_slots
from tf_syncrep.python.keras.tables.stacked_tables import tables_with
from tf_syncrep.python.ops import table_ops

__all__ = ["maintain_tables"]

# The most steps from one maintenance to the next.
_MOST_STEPS = 100
# How many times tables are maintained, at least, within the steps of `unused_for`.
_TIMES = 10


def maintain_tables(model: Any, step: int | None = None) -> None:
    """Removes rows of tables that grow, as their settings say, in a custom loop.

    `tfs.keras.fit` does it by itself; so does `tfs.keras.SyncReplicas` on a cluster, as
    a part of its updates. In any other loop call it every so many steps: between two of
    them or, if workers train asynchronously, at any time. A row that is removed rests
    until the next call, and gradients that were on their way to it are dropped.
    `unused_for` counts the steps that this function is given; so call it before the
    first step, too, if tables were restored.

    Args:
        model: a model with its optimizers in attributes, which are built.
        step: how many steps were made; by default the `iterations` of its optimizer.

    Raises:
        ValueError: the initial values of an optimizer's slots are not known.

    Example:
    ```python
    for step in range(num_steps):
        ...
        if step % 100 == 0:
            tfs.keras.maintain_tables(model)
    ```
    """
    maintenance = maintenance_of(model)
    if maintenance is not None:
        if step is None:
            step = int(compat.native(model.optimizer.iterations).numpy())
        maintenance.run(step)


class Maintenance:
    """Removes rows of some tables."""

    def __init__(
        self, tables: Iterable[DynamicTables], optimizers: Sequence[Any]
    ) -> None:
        """Finds the slots that belong to the rows.

        Args:
            tables: tables whose rows may be removed.
            optimizers: the optimizers that train them, which are built.

        Raises:
            ValueError: the initial values of an optimizer's slots are not known.
        """
        self._tables = list(tables)
        slots: dict[int, dict[str, RowSlot]] = {}
        for x in self._tables:
            slots |= row_slots(optimizers, x)
        self._slots = slots
        sizes = [size for x in self._tables for size in x.sizes.values()]
        unused = [size.unused_for // _TIMES for size in sizes if size.unused_for]
        #: How many steps there are from one maintenance to the next.
        self.every: int = max(1, min([_MOST_STEPS, *unused]))
        self._run = tf.function(
            self.build, autograph=False, input_signature=[tf.TensorSpec([], tf.int64)]
        )

    def run(self, step: int) -> None:
        """Maintains the tables now, after so many steps."""
        with compat.apart_from_closures():
            self._run(tf.constant(step, tf.int64))

    def build(self, step: tf.Tensor) -> None:
        """Builds the ops that maintain the tables, each on the device of its part."""
        for tables in self._tables:
            for slab in tables.slabs:
                sizes = [tables.sizes[table.name] for table in slab.tables]
                for part in tables.parts(slab):
                    slots = list(self._slots[id(part.vectors)].values())
                    with tf.device(part.vectors.device):
                        table_ops.table_maintain(
                            part.index,
                            part.vectors.handle,
                            part.keys.handle,
                            part.uses.handle,
                            step,
                            slots=[slot.variable.handle for slot in slots],
                            slot_initials=[slot.initial for slot in slots],
                            dtype=part.vectors.dtype,
                            evict=[size.eviction for size in sizes],
                            unused_for=[size.unused_for for size in sizes],
                        )


# The maintenance of each model, behind what it depends on.
_kept: weakref.WeakKeyDictionary[Any, tuple[Any, Maintenance | None]] = (
    weakref.WeakKeyDictionary()
)


def maintenance_of(model: Any) -> Maintenance | None:
    """The maintenance of a built model's tables; None if no rows are ever removed."""
    variables = [compat.native(v) for v in model.variables]
    optimizers = list(optimizers_of(model))
    slots = [slot for optimizer in optimizers for slot in variables_of(optimizer)]
    key = [*map(id, variables), *map(id, optimizers), *map(id, slots)]
    if model not in _kept or _kept[model][0] != key:
        _kept[model] = key, _maintenance(variables, optimizers)
    return _kept[model][1]


def maintenance_of_update(
    optimizer: Any, variables: Sequence[Any]
) -> Maintenance | None:
    """The maintenance for an optimizer that maintains tables in its own updates.

    Args:
        optimizer: the optimizer, which is built.
        variables: TensorFlow's variables that it trains.
    """
    return _maintenance(variables, [optimizer], trained_only=True)


def _maintenance(variables, optimizers, trained_only=False):
    tables = tables_with(DynamicTables, variables, trained_only)
    evicting = [x for x in tables if any(size.evicts for size in x.sizes.values())]
    return Maintenance(evicting, optimizers) if evicting else None
