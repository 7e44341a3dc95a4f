"""What SyncReplicas says of a training: a line, logs, and TensorBoard scalars."""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.sync import gate_stats

# The counters that go into the logs of an epoch.
_LOGGED = ("updates", "late", "stale", "voided", "waited_secs")
# What TensorBoard takes for numbers to draw as curves.
_SCALARS = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
)


class Report:
    """Reads the counters of a gate, and writes them down."""

    def __init__(
        self,
        read_stats: Callable[[], dict[str, Any]],
        log_dir: str | None,
        every_n_updates: int,
    ):
        """Opens nothing yet.

        Args:
            read_stats: returns the counters, as `gate_stats.to_dict` makes them.
            log_dir: where TensorBoard scalars go, or None.
            every_n_updates: how often.
        """
        self._read_stats = read_stats
        self._log_dir = log_dir
        self._every_n_updates = every_n_updates
        self._writer: Any = None
        self._stats: dict[str, Any] = {}
        self._time = 0.0

    def start(self) -> None:
        """Begins the first epoch of a training."""
        if self._log_dir is not None:
            self._writer = tf.summary.create_file_writer(self._log_dir)
        self._stats, self._time = self._read_stats(), time.monotonic()

    def on_update(self, step: int) -> None:
        """Writes scalars if it is time; called by the updater's thread.

        Args:
            step: updates that were made.
        """
        if self._writer is not None and step % self._every_n_updates == 0:
            self._write(self._read_stats())

    def on_epoch_end(self, logs: dict[str, Any] | None) -> str:
        """Writes scalars, and begins the next epoch.

        Args:
            logs: of the epoch; the counters are added.

        Returns:
            A line about the epoch.
        """
        stats, now = self._read_stats(), time.monotonic()
        scalars = gate_stats.to_scalars(stats)
        epoch_logs = {f"epoch_{name}": value for name, value in (logs or {}).items()}
        if logs is not None:
            logs.update({f"sync/{name}": scalars[f"sync/{name}"] for name in _LOGGED})
        self._write(stats, epoch_logs)
        line = _line(self._stats, stats, now - self._time)
        self._stats, self._time = stats, now
        return line

    def close(self) -> None:
        """Ends the training."""
        if self._writer is not None:
            self._write(self._read_stats())
            self._writer.close()
            self._writer = None

    def _write(self, stats: dict[str, Any], more: dict[str, Any] | None = None) -> None:
        if self._writer is None:
            return
        with self._writer.as_default(step=stats["step"]), tf.device("/device:CPU:0"):
            for tag, value in (gate_stats.to_scalars(stats) | (more or {})).items():
                # Not `tf.summary.scalar`, which wants TensorBoard to be installed.
                tf.summary.write(
                    tag, tf.constant(float(value), tf.float32), metadata=_SCALARS
                )
        self._writer.flush()


def _line(before: dict[str, Any], after: dict[str, Any], secs: float) -> str:
    """Says what has happened between two readings."""
    counts = {
        name: after[name] - before[name]
        for name in ("updates", "applied", "late", "stale", "rejected", "voided")
    }
    line = (
        f"SyncReplicas: {counts['updates']} updates "
        f"({counts['updates'] / max(secs, 1e-9):.1f}/s) of {counts['applied']} "
        f"gradients; dropped {counts['late']} late, {counts['stale']} stale, "
        f"{counts['rejected']} rejected, {counts['voided']} void"
    )
    nothing = {"waited_secs": 0.0, "contributed": 0}
    waits = [
        (worker["waited_secs"] - old["waited_secs"], gate_stats.task_name(device))
        for device, worker in after["workers"].items()
        for old in [before["workers"].get(device, nothing)]
        if worker["live"]
    ]
    if len(waits) > 1:
        # Who is slow is waited for, and waits least.
        secs, task = min(waits)
        line += f"; slowest {task} (waited {secs:.1f} s)"
    return line
