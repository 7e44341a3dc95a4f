"""A training that writes checkpoints; the benchmark tells it what to do.

    python checkpoint_trainer.py HOST PORT

The chief of a cluster. It trains a table by `tfs.keras.fit` in a thread, and writes
checkpoints of it, by ours and by others, in the main one.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import serving
import tensorflow as tf
from embedding_batches import batches

import tf_syncrep as tfs

_BATCHES = 1024
_CHUNK_BYTES = 8 << 20


class _Stop(tf.keras.callbacks.Callback):
    """Ends a training when it is told to."""

    def __init__(self):
        super().__init__()
        self.now = threading.Event()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = self.now.is_set()


class Trainer:
    """The methods that the benchmark calls in this process."""

    def __init__(self, contenders: Mapping[str, Any], model: Mapping[str, Any]):
        """Makes a model.

        `model`: the table's "rows" and "width", "tables" looked up in it, and
        "examples" of a batch and kind of "ids", as for `batches`; and
        "max_bytes_per_sec" of a checkpoint.
        """
        del contenders
        self._settings = model
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        workers = resolver.cluster_spec().num_tasks("worker")
        self._num_servers = resolver.cluster_spec().num_tasks("ps")
        with strategy.scope():
            self._model = self._make_model()
            optimizer = tfs.keras.SyncReplicas(tfs.keras.AdamAsync(1e-3), workers)
            self._model.compile(optimizer, loss="mse")
        self._updates: list[float] = []
        optimizer.add_observer(lambda _: self._updates.append(time.perf_counter()))
        self._folder = pathlib.Path(tempfile.mkdtemp(dir=model.get("folder")))
        self._checkpoint = tfs.keras.Checkpoint(
            self._folder / "ours",
            full_every=2,
            keep=1,
            model=self._model,
            max_bytes_per_sec=model["max_bytes_per_sec"],
        )
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the training, and waits until it runs."""
        self._stop = _Stop()
        self._thread = threading.Thread(
            target=lambda: tfs.keras.fit(
                self._model,
                self._dataset,
                steps_per_epoch=1_000_000_000,
                verbose=0,
                callbacks=[self._stop],
            )
        )
        self._thread.start()
        self.wait_for_updates(20)

    def stop(self) -> None:
        """Ends the training."""
        self._stop.now.set()
        self._thread.join()

    def wait_for_updates(self, more: int) -> None:
        """Waits until so many more updates were made."""
        until = len(self._updates) + more
        while len(self._updates) < until:
            time.sleep(0.01)

    def gaps(self, secs: float) -> list[float]:
        """The seconds between updates, in some seconds of training."""
        return self._gaps(lambda: time.sleep(secs))

    def save(self) -> dict[str, Any]:
        """Writes a checkpoint by ours, in turn a full one and one of changes."""
        os.sync()
        peak = _reset_peak()
        times: dict[str, float] = {}

        def save() -> None:
            begin = time.perf_counter()
            self._checkpoint.save(wait=True)
            times["written"] = time.perf_counter() - begin
            os.sync()
            times["on disk"] = time.perf_counter() - begin

        gaps = self._gaps(save)
        saving = self._checkpoint.saving
        return {
            "secs": times["on disk"],
            "bytes": saving.bytes_written,
            "rows": saving.rows_written,
            "kept": saving.kept_bytes,
            "gaps": gaps,
            "grown": max(0, _resident_bytes("VmHWM") - peak),
            "is_full": saving.manifest.is_full,
        }

    def write_alone(self, num_bytes: int) -> dict[str, Any]:
        """Writes as many bytes, equally fast, by a thread for each server."""
        size = num_bytes // self._num_servers
        speed = self._settings["max_bytes_per_sec"] or float("inf")
        # Servers do the same if their speed is bounded.
        chunk_bytes = int(min(_CHUNK_BYTES, speed / 10))
        chunk = np.random.default_rng(0).bytes(chunk_bytes)
        paths = [self._folder / f"alone-{i}" for i in range(self._num_servers)]

        def write(path: pathlib.Path) -> None:
            begin = time.perf_counter()
            with open(path, "wb", buffering=0) as file:
                for done in range(0, size, chunk_bytes):
                    time.sleep(max(0, begin + done / speed - time.perf_counter()))
                    file.write(chunk[: size - done])

        def write_all() -> None:
            _in_threads(write, paths)
            os.sync()

        os.sync()
        begin = time.perf_counter()
        gaps = self._gaps(write_all)
        seconds = time.perf_counter() - begin
        for path in paths:
            path.unlink()
        return {"secs": seconds, "gaps": gaps}

    def restore(self) -> tuple[float, float]:
        """The seconds to restore ours, and to read its files alone, both from disk."""
        files = sorted((self._folder / "ours").glob("*.data-*"))
        _forget(files)
        begin = time.perf_counter()
        before = self._checkpoint.restore()
        restoring = time.perf_counter() - begin
        assert before is not None
        _forget(files)
        begin = time.perf_counter()
        _in_threads(_read, files)
        return restoring, time.perf_counter() - begin

    def tensorflow(self) -> float:
        """Writes a checkpoint by `tf.train.Checkpoint`, training stopped."""
        saved = tf.train.Checkpoint(model=self._model, optimizer=self._model.optimizer)
        return self._timed(lambda: saved.write(str(self._folder / "tensorflow/ckpt")))

    def keras(self) -> float:
        """Writes what Keras' BackupAndRestore writes, training stopped."""
        path = self._folder / "keras.weights.h5"
        return self._timed(lambda: self._model.save_weights(str(path)))

    def check(self) -> None:
        """Checks that a full checkpoint has the variables' values, training stopped."""
        while not self.save()["is_full"]:
            pass
        latest = tf.train.latest_checkpoint(str(self._folder / "ours"))
        saved = tf.train.load_checkpoint(latest).get_tensor("tables/table")
        width = self._settings["width"]
        (table,) = self._model.get_layer("tables").get_embedding_tables().values()
        np.testing.assert_array_equal(saved.reshape(-1, width)[: len(table)], table)

    def clean(self) -> None:
        """Deletes all files."""
        shutil.rmtree(self._folder)

    def _timed(self, write: Callable[[], Any]) -> float:
        os.sync()
        begin = time.perf_counter()
        write()
        os.sync()
        return time.perf_counter() - begin

    def _gaps(self, function: Callable[[], Any]) -> list[float]:
        first = len(self._updates) - 1
        function()
        now = time.perf_counter()
        return np.diff([*self._updates[first:], now]).tolist()

    def _make_model(self) -> Any:
        tables, width = self._settings["tables"], self._settings["width"]
        table = tfs.keras.TableConfig("table", self._settings["rows"], width)
        inputs = tf.keras.Input([tables], dtype="int64")
        vectors = tfs.keras.DistributedEmbedding(
            [tfs.keras.FeatureConfig(f"ids{i}", table) for i in range(tables)],
            name="tables",
        )([inputs[:, i] for i in range(tables)])
        hidden = tf.keras.layers.Dense(64, "relu")(
            tf.keras.layers.Concatenate()(vectors)
        )
        return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))

    def _dataset(self, context: Any) -> tf.data.Dataset:
        ids = batches(self._settings, context.input_pipeline_id, _BATCHES)
        ids = ids.transpose(0, 2, 1).astype(np.int64)
        targets = np.ones([*ids.shape[:2], 1], np.float32)
        return tf.data.Dataset.from_tensor_slices((ids, targets)).repeat()


def _reset_peak() -> int:
    """Sets this process' peak of memory to what is resident now, and returns that."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # see proc(5)
    return _resident_bytes("VmRSS")


def _resident_bytes(kind: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{kind}:\s+(\d+) kB", status)[1])


def _in_threads(function: Callable[[Any], Any], arguments: Sequence[Any]) -> None:
    threads = [threading.Thread(target=function, args=(x,)) for x in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read(path: pathlib.Path) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _forget(paths: Sequence[pathlib.Path]) -> None:
    """Makes the next reads of files come from the disk, not from memory."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    serving.serve(Trainer)
