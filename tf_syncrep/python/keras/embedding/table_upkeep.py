"""What `fit` does for tables that grow: it maintains them, and reports on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.embedding.growing_layer import GrowingLayer
from tf_syncrep.python.keras.parts import optimizers_of
from tf_syncrep.python.keras.tables.growing.maintenance import (
    maintenance_of,
    steps_between,
)
from tf_syncrep.python.keras.tables.growing.table_stats import (
    counters_of,
    keys_from_nan,
    sizes_in_training_of,
)

# The counters of which the logs of an epoch have how much they have grown in it.
_COUNTED = ("without_row", "admitted", "evicted")
# The counters that are 0 as long as no training step has looked anything up.
_OF_LOOKUPS = ("rows", "without_row", "admitted")


class TableUpkeep(tf.keras.callbacks.Callback):
    """Maintains a model's tables that grow, and adds their counters to the logs.

    At the end of an epoch the logs have `tables/rows`, the rows in use, and of the
    steps of the epoch `tables/without_row`, how often they looked up a key without a
    row, `tables/admitted` and `tables/evicted`, how many keys got or lost a row. These
    are sums over all tables, of which there may be so many that nobody would read a
    line with all of them. `tf.keras.callbacks.TensorBoard` gets those of each table,
    as `tables/rows/<table>` and so on, in a run `tables` of its own.

    It warns of each table once: if it refuses keys, if no training step of an epoch has
    looked up in it, so that it stays empty, and if it has the key that NaN is cast to.
    """

    # Keras 2 refuses callbacks that look at batches in the strategy's scope without it.
    _supports_tf_logs = True

    def __init__(self, maintains: bool, log_dirs: Sequence[str] = ()):
        """Does nothing yet."""
        super().__init__()
        self._log_dirs = log_dirs
        self._writers: list[Any] | None = None
        self._maintains = maintains
        self._every: int | None = None  # steps from one maintenance to the next
        self._steps: int | None = None  # since the last maintenance in this training
        self._has_maintained = not maintains  # or another does, and is not asked
        self._last_batch = -1
        self._before: dict[str, dict[str, int]] = {}  # before this epoch
        self._refused: dict[str, int] = {}  # before this training
        self._are_full: set[str] = set()
        self._are_empty: set[str] = set()
        self._have_nan: set[str] = set()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to count batches anew."""
        del epoch, logs
        self._last_batch = -1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Maintains the tables before the first step, to tell them its number."""
        del batch, logs
        if self._steps is None and all(
            map(trainer.is_optimizer_built, optimizers_of(self.model))
        ):
            self._maintain()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Maintains the tables if a maintenance is due."""
        del logs
        self._steps = (self._steps or 0) + batch - self._last_batch
        self._last_batch = batch
        if not self._maintains:
            return
        if self._every is None:
            self._every = steps_between(sizes_in_training_of(self.model).values())
        if self._steps >= self._every:
            self._maintain()
            self._warn_of_full(counters_of(self.model))

    def _maintain(self) -> None:
        """Maintains the tables, unless an optimizer has it put off to a later batch."""
        self._steps = self._steps or 0
        maintenance = maintenance_of(self.model) if self._maintains else None
        if maintenance is None:  # which a table that is set may change
            self._steps = 0
        elif maintenance.may_begin():
            self._steps = 0
            self._has_maintained = True
            own = self.model.optimizer  # None if the model's step has others
            maintenance.run(maintenance.steps(*([] if own is None else [own])))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the counters to the logs."""
        stats = counters_of(self.model)
        self._warn_of_full(stats)
        if self._last_batch >= 0:
            self._warn_of_empty(stats)
            self._warn_of_nan()
        scalars, sums = {}, dict.fromkeys(("rows", *_COUNTED), 0)
        for name, counts in stats.items():
            before = self._before.get(name, {}) | {"rows": 0}
            for counter in sums:
                number = counts[counter] - before.get(counter, 0)
                scalars[f"tables/{counter}/{name}"] = number
                sums[counter] += number
        self._before = stats
        if logs is not None:
            logs.update({f"tables/{counter}": x for counter, x in sums.items()})
        self._write(epoch, scalars)

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the counters at the beginning."""
        del logs
        self._steps = None
        self._before = counters_of(self.model)
        self._refused = {name: x["refused"] for name, x in self._before.items()}

    def on_train_end(self, logs: Any = None) -> None:
        """Warns of what waited for a maintenance that did not come."""
        del logs
        if not self._has_maintained:
            self._has_maintained = True
            self._warn_of_full(counters_of(self.model))
        for writer in self._writers or ():
            writer.close()

    def _write(self, epoch: int, scalars: dict[str, int]) -> None:
        """Writes the numbers of each table for TensorBoard."""
        with tf.device("/device:CPU:0"):
            if self._writers is None:
                self._writers = [
                    # A file beside those of the callback would end what TensorBoard
                    # reads of them.
                    tf.summary.create_file_writer(os.path.join(x, "tables"))
                    for x in self._log_dirs
                ]
            for writer in self._writers:
                with writer.as_default(step=epoch):
                    for tag, number in scalars.items():
                        tf.summary.scalar(tag, number)
                writer.flush()

    def _warn_of_full(self, stats: dict[str, dict[str, int]]) -> None:
        sizes = sizes_in_training_of(self.model)
        for name, size in sizes.items():
            counts = stats[name]
            refused = counts["refused"] - self._refused.get(name, 0)
            evicts = size.evict is not None
            # A table may have been full before the training. If it evicts, the first
            # maintenance makes room in it.
            waits = evicts and not self._has_maintained
            if refused <= 0 or name in self._are_full or waits:
                continue
            self._are_full.add(name)
            if evicts:
                logging.warning(
                    "Table %r, or a part of it, was full, and new keys got no row, %d "
                    "times so far; %d of its %d rows are in use now. Give it a larger "
                    "max_rows: evict= makes room only every %d steps.",
                    name,
                    refused,
                    counts["rows"],
                    counts["capacity"],
                    steps_between(sizes.values()),
                )
            else:
                logging.warning(
                    "Table %r, or a part of it, is full: %d of its %d rows are in use, "
                    "and new keys get none, %d so far. Give it a larger max_rows, or "
                    "say with evict= which rows have to go.",
                    name,
                    counts["rows"],
                    counts["capacity"],
                    refused,
                )

    def _warn_of_empty(self, stats: dict[str, dict[str, int]]) -> None:
        for name in sizes_in_training_of(self.model):
            counts = stats[name]
            if name not in self._are_empty and not any(map(counts.get, _OF_LOOKUPS)):
                self._are_empty.add(name)
                logging.warning(
                    "Table %r stays empty: no training step has looked up an id in it. "
                    "`call` of the model must have an argument `training`, and pass it "
                    "to the layer; a `train_step` of your own must call the model with "
                    "training=True.",
                    name,
                )

    def _warn_of_nan(self) -> None:
        for name, key in keys_from_nan(self.model).items():
            if name not in self._have_nan:
                self._have_nan.add(name)
                logging.warning(
                    "Table %r has a row of id %d, which is what NaN becomes if it is "
                    "cast to an integer: all missing values share that row. If the "
                    "data have any, say which id they are to have.",
                    name,
                    key,
                )


def with_upkeep(model: Any, callbacks: Any, maintains: bool) -> Any:
    """Adds a TableUpkeep to callbacks of `fit` if the model has tables that grow."""
    layers = trainer.layers_of(model)
    if not any(isinstance(x, GrowingLayer) and x._growing.sizes for x in layers):
        return callbacks
    kind = tf.keras.callbacks.TensorBoard
    boards = [x for x in trainer.each_callback(callbacks) if isinstance(x, kind)]
    upkeep = TableUpkeep(maintains, [x.log_dir for x in boards])
    return trainer.with_callbacks(model, callbacks, before=[upkeep])
