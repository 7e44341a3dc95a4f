"""SyncReport: reports on synchronous training, and never disturbs it."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_count
from tf_syncrep.python.base.sizes import PLACEMENT
from tf_syncrep.python.keras.sync_replicas.optimizer import SyncReplicas
from tf_syncrep.python.keras.sync_replicas.report.scalars_writer import ScalarsWriter
from tf_syncrep.python.keras.tables.growing.table_stats import counters_of, stats_of
from tf_syncrep.python.keras.tables.placed_bytes import placed_bytes
from tf_syncrep.python.keras.training_clock import clock_of
from tf_syncrep.python.sync import gate_stats

__all__ = ["SyncReport"]

# The counters that go into the logs of an epoch.
_LOGGED = ("updates", "late", "stale", "voided", "waited_secs")
# The counters of tables that grow, which are written as what this training has added.
_OF_TABLES = ("without_row", "admitted", "evicted", "refused")
# The reports that write files.
_observing: weakref.WeakSet[SyncReport] = weakref.WeakSet()


class SyncReport(tf.keras.callbacks.Callback):
    """Reports on `SyncReplicas`: in the logs, in a line per epoch, and in TensorBoard.

    At the end of each epoch the gate's counters go into the logs, as `sync/updates`,
    `sync/late`, `sync/stale`, `sync/voided` and `sync/waited_secs`. Like those in
    TensorBoard, they count from the beginning of the training. Callbacks that need them
    in the logs have to come after this one. The printed line counts only the epoch. Its
    updates per second are per second of training: validation, the time between epochs,
    and callbacks that take a second or more between two steps, as when they write a
    checkpoint, do not count. TensorBoard gets that time as `sync/training_secs`.

    It only observes: training is the same without it. A thread writes TensorBoard's
    files, and workers never wait for it. If it fails, for example because the disk is
    full, the failure is logged once, and nothing more is written.

    Args:
        log_dir: the folder for TensorBoard scalars `sync/...`, by updates, and for the
            epochs' logs as `epoch_...`; each element of a metric that is a vector
            becomes `epoch_NAME/INDEX`. At the end of each epoch, tables that grow add
            `tables/rows/NAME`, `tables/bytes/NAME` and so on. A table in text,
            `placement`, has the bytes of each variable, with its slots, and its server.
            `tf-syncrep report` draws and prints them. None for no files.
        every_n_updates: how often they are written, besides the ends of epochs.
        verbose: 1 prints a line at the end of each epoch, 0 nothing.

    Raises:
        ValueError: an argument is out of range; or, in `fit`, the model's optimizer is
            not a `SyncReplicas`.

    Example:
    ```python
    report = tfs.keras.SyncReport(log_dir="logs")
    tfs.keras.fit(model, dataset, steps_per_epoch=1000, callbacks=[report])
    ```
    """

    def __init__(
        self,
        log_dir: str | None = None,
        every_n_updates: int = 100,
        verbose: int = 1,
    ):
        super().__init__()
        self._every_n_updates = check_count("every_n_updates", every_n_updates)
        self._log_dir = log_dir
        self._verbose = verbose
        self._optimizer: Any = None
        self._writer: ScalarsWriter | None = None
        self._before: dict[str, Any] = {}
        self._tables_before: dict[str, dict[str, int]] = {}
        self._line: str | None = None
        self._has_placed = False

    def set_model(self, model: Any) -> None:
        """Finds the optimizer.

        Raises:
            ValueError: the optimizer is not a SyncReplicas.
        """
        super().set_model(model)
        optimizer = getattr(model, "optimizer", None)
        if not isinstance(optimizer, SyncReplicas):
            optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if not isinstance(optimizer, SyncReplicas):
            raise ValueError(
                "SyncReport reports on tfs.keras.SyncReplicas. Received: a model with "
                f"optimizer {type(optimizer).__name__}"
            )
        self._optimizer = optimizer

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to observe."""
        del logs
        # A `fit` that an error has ended may have left a line and a writer, of this
        # report or of another one. Reports of the same `fit` have seen no epoch yet.
        self._line = None
        self._end()
        for other in [*_observing]:
            if other._optimizer is self._optimizer and other._before:
                other._end()
        if self._log_dir is not None:
            self._tables_before = counters_of(self.model)
            self._has_placed = False
            _observing.add(self)
            self._writer = ScalarsWriter(self._log_dir, self._read)
            self._optimizer.add_observer(self._on_update)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Reads the counters before the epoch."""
        del epoch, logs
        self._print_line()
        self._before = self._optimizer.stats()
        clock_of(self.model).start()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes that training goes on."""
        del batch, logs
        clock_of(self.model).note_step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reports on the epoch, whose updates are complete by now."""
        del epoch
        stats = self._optimizer.stats()
        if self._writer is not None:
            more = _epoch_scalars(logs) | self._table_scalars()
            if not self._has_placed:
                self._has_placed = True
                more |= _placement(self.model)
            self._writer.write(self._timed(stats), more)
        if logs is not None:
            scalars = gate_stats.to_scalars(stats)
            names = [f"sync/{name}" for name in _LOGGED]
            logs.update({name: scalars[name] for name in names if name in scalars})
        if self._verbose:
            self._line = _line(self._before, stats, clock_of(self.model).secs)

    def on_train_end(self, logs: Any = None) -> None:
        """Writes the rest, and stops observing."""
        del logs
        self._print_line()
        if self._writer is not None:
            self._writer.write(self._read(), {})
        self._end()

    def _table_scalars(self) -> dict[str, float]:
        """Returns the numbers of tables that grow by tag."""
        scalars = {}
        for name, counts in stats_of(self.model).items():
            before = self._tables_before.get(name, {})
            figures = {x: counts[x] - before.get(x, 0) for x in _OF_TABLES}
            figures |= {x: counts[x] for x in ("rows", "capacity")}
            figures["bytes"] = sum(
                counts[f"{x}_bytes"] for x in ("index", "vector", "slot")
            )
            scalars |= {f"tables/{x}/{name}": float(y) for x, y in figures.items()}
        return scalars

    def _print_line(self) -> None:
        """Prints the line of an epoch, after the progress bar has ended its own."""
        if self._line is not None:
            print(self._line, flush=True)
            self._line = None

    def _end(self) -> None:
        if self._writer is not None:
            self._optimizer.remove_observer(self._on_update)
            self._writer.close()
            self._writer = None
            self._before = {}
            _observing.discard(self)

    def _on_update(self, step: int) -> None:
        if self._writer is not None and step % self._every_n_updates == 0:
            self._writer.ask()

    def _read(self) -> dict[str, Any]:
        return self._timed(self._optimizer.stats())

    def _timed(self, stats: dict[str, Any]) -> dict[str, Any]:
        """Adds the time of training, from which rates can be computed later."""
        return {**stats, "training_secs": clock_of(self.model).total_secs}


def _epoch_scalars(logs: dict[str, Any] | None) -> dict[str, float]:
    """Returns the logs of an epoch as numbers by tag; other values are omitted."""
    scalars = {}
    for name, value in (logs or {}).items():
        try:
            values = tf.convert_to_tensor(value, tf.float32).numpy()
        except (TypeError, ValueError):
            continue
        if values.ndim == 0:
            scalars[f"epoch_{name}"] = float(values)
        else:
            for index, element in enumerate(values.ravel()):
                scalars[f"epoch_{name}/{index}"] = float(element)
    return scalars


def _placement(model: Any) -> dict[str, Any]:
    """Returns a table of servers, variables and bytes by tag, if there are servers."""
    rows = [
        (server, name, str(size))
        for server, sizes in placed_bytes(model).items()
        for name, size in sizes.items()
    ]
    return {PLACEMENT: rows} if rows else {}


def _line(before: dict[str, Any], after: dict[str, Any], secs: float) -> str:
    """Describes what has happened between two readings."""
    counts = {
        name: after[name] - before.get(name, 0)
        for name in ("updates", "applied", "late", "stale", "rejected", "voided")
        if name in after
    }
    line = f"SyncReplicas: {counts['updates']} updates"
    if secs > 0:
        line += f" ({counts['updates'] / secs:.1f}/s)"
    line += f" of {counts['applied']} gradients"
    dropped = [
        f"{counts[name]} {word}"
        for name, word in (
            ("late", "late"),
            ("stale", "stale"),
            ("rejected", "rejected"),
            ("voided", "void"),
        )
        if name in counts
    ]
    line += f"; dropped {', '.join(dropped)}"
    nothing = {"waited_secs": 0.0}
    earlier = before.get("workers", {})
    waits = [
        (
            worker["waited_secs"] - earlier.get(device, nothing)["waited_secs"],
            gate_stats.task_name(device),
        )
        for device, worker in after["workers"].items()
        if worker["live"]
    ]
    if len(waits) > 1:
        # The others wait for a slow worker, which itself waits least.
        waited_secs, task = min(waits)
        line += f"; slowest {task} (waited {waited_secs:.1f} s)"
    return line
