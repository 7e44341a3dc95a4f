"""Writes TensorBoard scalars in a thread, without waiting for a slow disk."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.sync import gate_stats

# The end of a training waits so long for scalars that are still to be written.
_END_SECS = 5.0
# At most so many readings wait for a slow disk.
_MOST_READINGS = 100
# With this, TensorBoard draws the numbers as curves.
SCALARS = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
)
# With this, it shows rows of strings as a table.
_TEXT = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="text")
)
# Rows of strings.
_Rows = list[tuple[str, ...]]


class ScalarsWriter:
    """Accepts scalars without waiting; a slow disk gets only the latest.

    The scalars are readings of the gate's counters, or a request for one.
    """

    def __init__(self, log_dir: str, read_stats: Callable[[], dict[str, Any]]):
        self._log_dir = log_dir
        self._read_stats = read_stats
        # It guards the following fields, and is notified when one of them has changed.
        self._changed = threading.Condition()
        self._is_asked = False
        # If the disk is slower than the epochs, the oldest readings are omitted.
        self._readings: collections.deque[
            tuple[dict[str, Any], Mapping[str, float | _Rows]]
        ] = collections.deque(maxlen=_MOST_READINGS)
        self._is_closed = False
        self._has_failed = False
        self._has_misread = False  # The thread alone uses it.
        self._thread = threading.Thread(
            target=self._run, name="sync_report", daemon=True
        )
        self._thread.start()

    def ask(self) -> None:
        """Makes the thread read and write the counters soon."""
        with self._changed:
            self._is_asked = True
            self._changed.notify()

    def write(self, stats: dict[str, Any], more: Mapping[str, float | _Rows]) -> None:
        """Writes a reading later, and further numbers and tables of text by tag."""
        with self._changed:
            if not self._has_failed:
                self._readings.append((stats, more))
                self._changed.notify()

    def close(self) -> None:
        """Ends the thread when all is written, or leaves it behind after seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_END_SECS)
        if self._thread.is_alive():
            logging.warning(
                "SyncReport: writing to %s takes more than %g s, and is not waited "
                "for. The last scalars may be missing.",
                self._log_dir,
                _END_SECS,
            )

    def _run(self) -> None:
        try:
            with (
                tf.device("/device:CPU:0"),
                contextlib.closing(tf.summary.create_file_writer(self._log_dir)) as to,
            ):
                while self._write_next(to):
                    pass
        except Exception as error:
            with self._changed:
                self._has_failed = True
                self._readings.clear()
            logging.warning(
                "SyncReport: writing to %s failed, and nothing more is written there. "
                "Training goes on. Received: %s",
                self._log_dir,
                error,
            )

    def _write_next(self, writer: Any) -> bool:
        """Waits for scalars and writes them; returns whether there may be more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_asked or self._readings or self._is_closed
            )
            if self._readings:
                stats, more = self._readings.popleft()
            elif self._is_asked:
                self._is_asked = False
                stats, more = None, {}
            else:
                return False
        if stats is None:
            try:
                stats = self._read_stats()
            except Exception as error:
                if not self._has_misread:
                    logging.warning(
                        "SyncReport: reading the gate's counters failed, and their "
                        "scalars are missing. Training goes on. Received: %s",
                        error,
                    )
                self._has_misread = True
                return True
        with writer.as_default(step=stats["step"]):
            for tag, value in {**gate_stats.to_scalars(stats), **more}.items():
                # `tf.summary.scalar` would need an installed TensorBoard.
                if isinstance(value, list):
                    tf.summary.write(tag, tf.constant(value), metadata=_TEXT)
                else:
                    number = tf.constant(value, tf.float32)
                    tf.summary.write(tag, number, metadata=SCALARS)
        writer.flush()
        return True
