"""Removes rows of tables that grow, between two updates."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.optimizer_slots import variables_of
from tf_syncrep.python.keras.tables.growing.dynamic import Dynamic
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.row_slots import RowSlot, row_slots
from tf_syncrep.python.keras.tables.stacked_tables import tables_with
from tf_syncrep.python.keras.tables.trainers import trainers_of
from tf_syncrep.python.ops import table_ops

__all__ = ["maintain_tables"]

# The most steps from one maintenance to the next.
_MOST_STEPS = 100
# How many times tables are maintained, at least, within the steps of `unused_for`.
_TIMES = 10


def maintain_tables(model: Any, step: int | None = None) -> None:
    """Removes rows of tables that grow, as their settings say, in a custom loop.

    `tfs.keras.fit` does it by itself; so does `tfs.keras.SyncReplicas` on a cluster, as
    a part of its updates, and then this function does nothing. In any other loop call
    it every so many steps: between two of them or, if workers train asynchronously, at
    any time. A row that is removed rests until the next call, and gradients that were
    on their way to it are dropped; its slots begin anew in each optimizer that was
    built to train the table, be it the model's or the loop's own. `unused_for` counts
    the steps that this function is given; so call it before the first step, too, if
    tables were restored.

    While `tfs.keras.GradientAccumulation`, or `tfs.keras.SyncReplicas` in one process,
    has gradients of some batches for its next update, which name rows by number, only
    the first call removes rows.

    Args:
        model: a model or layer with the tables.
        step: how many steps were made; by default the `iterations` of the optimizer
            that trains the tables, and the most of them if several do.

    Raises:
        ValueError: the initial values of an optimizer's slots are not known; or `step`
            is not given and no optimizer trains the tables yet.

    Example:
    >>> table = tfs.keras.Embedding(tfs.keras.Dynamic(1000, unused_for=5), 8)
    >>> inputs = tf.keras.layers.Input((), dtype="int64")
    >>> model = tf.keras.Sequential([inputs, table, tf.keras.layers.Dense(1)])
    >>> optimizer = tfs.keras.AdamAsync(0.01)
    >>> for step in range(30):
    ...     ids = tf.constant([step, step + 1])
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean(model(ids, training=True) ** 2)
    ...     variables = model.trainable_variables
    ...     gradients = tape.gradient(loss, variables)
    ...     _ = optimizer.apply_gradients(zip(gradients, variables))
    ...     if step % 5 == 0:
    ...         tfs.keras.maintain_tables(model)
    >>> (stats,) = table.table_stats().values()
    >>> print(stats["evicted"] > 0)
    True
    """
    maintenance = maintenance_of(model)
    if maintenance is None:
        return
    if step is None:
        step = maintenance.steps()
    if maintenance.may_begin():
        maintenance.run(step)


def steps_between(sizes: Iterable[Dynamic]) -> int:
    """Returns how many steps there are from one maintenance of tables to the next."""
    unused = [size.unused_for // _TIMES for size in sizes if size.unused_for]
    return max(1, min([_MOST_STEPS, *unused]))


class Maintenance:
    """Removes rows of some tables."""

    def __init__(
        self, tables: Iterable[DynamicTables], optimizers: Sequence[Any]
    ) -> None:
        """Finds the slots that belong to the rows."""
        self._tables = list(tables)
        slots: dict[int, list[RowSlot]] = {}
        for x in self._tables:
            slots |= row_slots(optimizers, x)
        self._slots = slots
        sizes = [size for x in self._tables for size in x.sizes_in_training().values()]
        #: How many steps there are from one maintenance to the next.
        self.every: int = steps_between(sizes)
        # Traced by hand, since TensorFlow would take those of several models for one
        # function that is traced again and again.
        with tf.init_scope():
            self._run = tf.function(self.build, autograph=False).get_concrete_function(
                tf.TensorSpec([], tf.int64)
            )

    def steps(self, *optimizers: Any) -> int:
        """Returns the most updates that an optimizer of the tables has made.

        So the count never goes back where several train them, each with its own.

        `*optimizers`: optimizers that count, too, whether they train the tables or not.
        Raises ValueError: there is no optimizer.
        """
        counting = [*optimizers, *trainers_of(*self._tables)]
        if not counting:
            raise ValueError(
                "`step` must be given if no optimizer that trains the tables counts "
                "the steps. Received: step=None"
            )
        with compat.apart_from_closures():
            # It is a tensor with `gradient_accumulation_steps` of Keras 3.
            return max(
                int(tf.convert_to_tensor(compat.native(optimizer.iterations)))
                for optimizer in counting
            )

    def may_begin(self) -> bool:
        """Returns whether rows may be removed now.

        Optimizers that collect gradients are asked, which say no to a second
        maintenance within a round.
        """
        return all(x.may_begin_maintenance() for x in self._collecting())

    def _collecting(self) -> list[Any]:
        trainers = trainers_of(*self._tables)
        return [x for x in trainers if hasattr(x, "may_begin_maintenance")]

    def run(self, step: int) -> None:
        """Maintains the tables now, after so many steps."""
        with compat.apart_from_closures():
            for optimizer in self._collecting():
                optimizer.begin_maintenance()
            for tables in self._tables:
                if tables.has_rested:
                    tables.has_rested = False
                    _move_last_uses(tables, step)
            self._run(tf.constant(step, tf.int64))

    def build(self, step: tf.Tensor) -> None:
        """Builds the ops that maintain the tables, each on the device of its part."""
        for tables in self._tables:
            for slab in filter(lambda slab: slab.trainable, tables.slabs):
                sizes = [tables.sizes[table.name] for table in slab.tables]
                for part in tables.parts(slab):
                    slots = self._slots[id(part.vectors)]
                    table_ops.table_maintain(
                        part,
                        step,
                        slots=[(slot.variable, slot.initial) for slot in slots],
                        evict=[size.eviction for size in sizes],
                        unused_for=[size.unused_for for size in sizes],
                    )


def _move_last_uses(tables: DynamicTables, step: int) -> None:
    """Moves last uses forward to now, so that steps of a rest do not count."""
    for name in tables.by_name:
        rows = tables.rows_of(name)
        last_uses, counts = rows.uses.T
        last_uses += max(0, step - last_uses.max(initial=0))
        for part_number, part in enumerate(tables.parts(tables.slab_of(name))):
            here = rows.part_numbers == part_number
            tables.add_rows(name, part, rows.keys[here], last_uses[here], counts[here])


# The maintenance of each model, behind what it depends on.
_kept: weakref.WeakKeyDictionary[Any, tuple[Any, Maintenance | None]] = (
    weakref.WeakKeyDictionary()
)


def maintenance_of(model: Any) -> Maintenance | None:
    """Returns the maintenance of a built model's tables; None if no rows can go now."""
    variables = [compat.native(v) for v in model.variables]
    tables = tables_with(DynamicTables, variables)
    for x in tables:
        x.has_rested |= not x.are_trainable
    optimizers = trainers_of(*tables)
    slots = [slot for optimizer in optimizers for slot in variables_of(optimizer)]
    losing = [x for x in tables if x.loses_rows()]
    key = [*map(id, variables), *map(id, optimizers), *map(id, slots), *map(id, losing)]
    if model not in _kept or _kept[model][0] != key:
        _kept[model] = key, Maintenance(losing, optimizers) if losing else None
    return _kept[model][1]
