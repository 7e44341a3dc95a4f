"""Training of many embedding tables by `tfs.keras.fit`, as a benchmark tells it to.

    python fit_trainer.py HOST PORT

A task of TF_CONFIG: where there are parameter servers, the chief, which coordinates the
workers; where there are none, a process that trains alone.

All contenders have the same model: `DistributedEmbedding` with a table for each
feature, and two dense layers behind it. They differ in whether SyncReplicas is around
the optimizer and in how many steps an execution has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import processor_time
import serving
import tensorflow as tf
from embedding_batches import ADAM, UNITS, batches, kernels

import tf_syncrep as tfs

_BATCHES = 16
_REHEARSED = 2


class _Epochs(tf.keras.callbacks.Callback):
    """Seconds and processor time of each epoch."""

    def __init__(self, pids: Sequence[int]):
        super().__init__()
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._pids = pids
        self._begin = (0.0, 0.0)

    def on_epoch_begin(self, epoch, logs=None):
        """Notes when it begins."""
        self._begin = self._now()

    def on_epoch_end(self, epoch, logs=None):
        """Notes how long it took."""
        for values, begin, end in zip(
            (self.wall, self.cpu), self._begin, self._now(), strict=True
        ):
            values.append(end - begin)

    def _now(self):
        return time.perf_counter(), sum(map(processor_time.seconds, self._pids))


class Trainer:
    """What the benchmark tells a process to do, by the methods' names."""

    def __init__(self, contenders: Mapping[str, Any], model: Mapping[str, Any]):
        """Connects to workers and parameter servers, if there are any."""
        self._contenders = contenders
        self._model = model
        self._models: dict[str, Any] = {}
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self._strategy = tf.distribute.get_strategy()
        self._num_workers = 1
        self._has_cluster = "ps" in resolver.cluster_spec().jobs
        if self._has_cluster:
            self._num_workers = resolver.cluster_spec().num_tasks("worker")
            self._strategy = tf.distribute.ParameterServerStrategy(resolver)

    def open(self, name: str) -> None:
        """Makes a contender's model."""
        contender = self._contenders[name]
        names = [f"table_{number}" for number in range(self._model["tables"])]
        with self._strategy.scope():
            inputs = {x: tf.keras.Input((), dtype=tf.int32, name=x) for x in names}
            tables = tfs.keras.DistributedEmbedding(
                {
                    x: tfs.keras.FeatureConfig(
                        x,
                        tfs.keras.TableConfig(
                            x, self._model["rows"], self._model["width"], "ones"
                        ),
                    )
                    for x in names
                },
                name="tables",
            )
            vectors = tables(inputs)
            hidden = tf.keras.layers.Concatenate()([vectors[x] for x in names])
            hidden = tf.keras.layers.Dense(UNITS[0], "tanh", name="hidden")(hidden)
            output = tf.keras.layers.Dense(UNITS[1], name="output")(hidden)
            model = tf.keras.Model(inputs, output)
            for layer, values in zip(
                ("hidden", "output"), kernels(self._model), strict=True
            ):
                model.get_layer(layer).set_weights([values, np.zeros(values.shape[1])])
            optimizer = tfs.keras.AdamAsync(**ADAM)
            if contender["sync"]:
                optimizer = tfs.keras.SyncReplicas(
                    optimizer, self._num_workers, spares=False
                )
            model.compile(optimizer, loss="mse", steps_per_execution=contender["steps"])
        self._models[name] = model

    def rehearse(self, name: str) -> list[list[float]]:
        """Makes some updates, and returns rows of a table.

        There is no telling which worker's step takes part in which update. So all steps
        of an execution have the same batch, and so have all workers where the update is
        the mean of their gradients.
        """
        contender = self._contenders[name]
        copies = self._num_workers if contender["sync"] else 1
        rehearsed = batches(self._model, 1, _REHEARSED)
        for batch in rehearsed:
            data = self._dataset(np.stack([batch] * contender["steps"] * copies))
            tfs.keras.fit(self._models[name], data, verbose=0)
        tables = self._models[name].get_layer("tables").get_embedding_tables()
        return tables["table_0"][rehearsed[:, 0, :32].ravel()].tolist()

    def run(
        self, name: str, steps: int, epochs: int, pids: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """Lets the workers make `steps` steps an epoch, together."""
        timed = _Epochs(pids)
        data = self._dataset(batches(self._model, 0, _BATCHES))
        tfs.keras.fit(
            self._models[name],
            data.shuffle(_BATCHES, seed=1).repeat(),
            steps_per_epoch=steps,
            epochs=1 + epochs,
            callbacks=[timed],
            verbose=0,
        )
        return timed.wall[1:], timed.cpu[1:]

    def updates(self, name: str) -> int:
        """Returns how many updates were made, those of the rehearsal included."""
        return int(self._models[name].optimizer.iterations.numpy())

    def _dataset(self, ids: np.ndarray) -> tf.data.Dataset:
        """Ids, shape [batches, tables, examples], and what is to be learned: ones."""
        features = {f"table_{number}": ids[:, number] for number in range(ids.shape[1])}
        ones = np.ones((len(ids), ids.shape[2], 1), np.float32)
        examples: Any = (features, ones)
        return tf.data.Dataset.from_tensor_slices(examples)


if __name__ == "__main__":
    serving.serve(Trainer)
