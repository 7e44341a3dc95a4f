"""Training of many embedding tables; the benchmark tells it what to run.

    python embedding_trainer.py HOST PORT

It is a task of TF_CONFIG. With parameter servers it is the chief, which coordinates the
workers by a custom loop; without them it is a process that trains alone.

All contenders have the same model: so many features, each of which has a table of its
own, and two dense layers behind their vectors. They differ in where the tables are and
how they are looked up, in the optimizer, and in whether SyncReplicas is around it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import hops
import keras_variants
import numpy as np
import serving
import tensorflow as tf
from embedding_batches import ADAM, batches, kernels

import tf_syncrep as tfs

_BATCHES = 16


class _Layers:
    """A layer for each table."""

    def __init__(self, layer: Any, model: Mapping[str, Any]):
        self._layers = [
            layer(model["rows"], model["width"], embeddings_initializer="ones")
            for _ in range(model["tables"])
        ]
        for one in self._layers:
            one.build((None,))

    @property
    def variables(self) -> list[Any]:
        return [layer.trainable_variables[0] for layer in self._layers]

    def __call__(self, ids: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [layer(x) for layer, x in zip(self._layers, ids, strict=True)]

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the first table."""
        table = keras_variants.native(self.variables[0])
        return tf.gather(table, ids).numpy()


class _Distributed:
    """One `DistributedEmbedding`."""

    def __init__(self, model: Mapping[str, Any]):
        names = [f"table_{number}" for number in range(model["tables"])]
        size = self._size(model["rows"])
        self._layer = tfs.keras.DistributedEmbedding(
            [
                tfs.keras.FeatureConfig(
                    name,
                    tfs.keras.TableConfig(
                        name, size, model["width"], "ones", **self._own_optimizer()
                    ),
                )
                for name in names
            ]
        )
        self._layer.build()

    def _size(self, rows: int) -> Any:
        return rows

    def _own_optimizer(self) -> dict[str, Any]:
        return {}

    @property
    def variables(self) -> list[Any]:
        return self._layer.trainable_variables

    def __call__(self, ids: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._layer(list(ids), training=True)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the first table."""
        return self._layer.get_embedding_tables()["table_0"][ids]


class _RowwiseAdagrad(_Distributed):
    """One `DistributedEmbedding` of tables with the optimizer of fbgemm's."""

    def _own_optimizer(self) -> dict[str, Any]:
        return {"optimizer": tfs.keras.RowwiseAdagrad(**ADAM)}


class _Growing(_Distributed):
    """One `DistributedEmbedding` of tables that grow."""

    def _size(self, rows: int) -> Any:
        return tfs.keras.Dynamic(rows)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows of those ids of the first table that have one."""
        keys, vectors = self._layer.get_embedding_tables()["table_0"]
        rows = np.searchsorted(keys, ids)
        np.testing.assert_array_equal(keys[rows], ids)
        return vectors[rows]


class _StockOps(_Distributed):
    """The same tables, looked up by TensorFlow's own ops."""

    def __init__(self, model: Mapping[str, Any]):
        super().__init__(model)
        self._rows = model["rows"]

    def __call__(self, ids: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        rows = tf.concat([x + i * self._rows for i, x in enumerate(ids)], axis=0)
        rows, places = tf.unique(rows)
        parts = list(map(keras_variants.native, self.variables))
        owners = rows % len(parts)
        numbers = tf.dynamic_partition(tf.range(tf.size(rows)), owners, len(parts))
        asked = tf.dynamic_partition(rows // len(parts), owners, len(parts))
        found = [tf.gather(p, x) for p, x in zip(parts, asked, strict=True)]
        vectors = tf.gather(tf.dynamic_stitch(numbers, found), places)
        return tf.split(vectors, len(ids))


class _NoTables:
    """No tables: the rest of a step, whose cost is the same for all tables."""

    variables: tuple[Any, ...] = ()

    def __init__(self, model: Mapping[str, Any]):
        self._width = model["width"]

    def __call__(self, ids: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [
            tf.tile(tf.cast(x, tf.float32)[:, None] * 1e-5, [1, self._width])
            for x in ids
        ]

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """No rows."""
        return np.zeros([len(ids), 0])


_TABLES = {
    "none": _NoTables,
    "distributed": _Distributed,
    "rowwise_adagrad": _RowwiseAdagrad,
    "growing": _Growing,
    "stock_ops": _StockOps,
    "layers": functools.partial(
        _Layers, functools.partial(tfs.keras.Embedding, shards=1)
    ),
    "keras_layers": functools.partial(_Layers, tf.keras.layers.Embedding),
}
_OPTIMIZERS = {
    "AdamAsync": functools.partial(tfs.keras.AdamAsync, **ADAM),
    "TableOptimizers": lambda: tfs.keras.TableOptimizers(tfs.keras.AdamAsync(**ADAM)),
    "Adam": functools.partial(tf.keras.optimizers.Adam, **ADAM),
}


class Training:
    """One contender's variables and optimizer."""

    def __init__(
        self, contender: Mapping[str, Any], model: Mapping[str, Any], num_workers: int
    ):
        """Makes them where the current strategy places them."""
        self.tables = _TABLES[contender["tables"]](model)
        self.steps_per_call = contender["steps"]
        first_values = kernels(model)
        self._dense = [
            tf.keras.layers.Dense(
                values.shape[1], kernel_initializer=tf.keras.initializers.Zeros()
            )
            for values in first_values
        ]
        for layer, values in zip(self._dense, first_values, strict=True):
            layer.build((None, len(values)))
            layer.set_weights([values, np.zeros(values.shape[1])])
        self.variables = [
            *self.tables.variables,
            *(x for layer in self._dense for x in layer.trainable_variables),
        ]
        self.optimizer = _OPTIMIZERS[contender["inner"]]()
        self.is_synchronous = contender["sync"]
        if self.is_synchronous:
            self.optimizer = tfs.keras.SyncReplicas(
                self.optimizer, num_workers, spares=False
            )
        self.optimizer.build(self.variables)

    def step(self, ids: Sequence[tf.Tensor]) -> None:
        """One step of a worker."""
        synchronously = self.is_synchronous
        with self.optimizer.step() if synchronously else tfs.keras.few_messages():
            with tf.GradientTape() as tape:
                hidden = self._dense[0](tf.concat(self.tables(ids), axis=-1))
                loss = tf.reduce_mean(tf.square(self._dense[1](tf.tanh(hidden)) - 1.0))
            natives = list(map(keras_variants.native, self.variables))
            gradients = tape.gradient(loss, natives)
            self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))

    def updates(self) -> int:
        """How many updates were made."""
        return int(keras_variants.native(self.optimizer.iterations).numpy())


class Trainer:
    """The methods that the benchmark calls in this process."""

    def __init__(self, contenders: Mapping[str, Any], model: Mapping[str, Any]):
        """Connects to workers and parameter servers, if there are any.

        `contenders`: first arguments of `Training`, by their names. `model`: second
        argument of it; also "examples" of a batch and kind of "ids".
        """
        self._contenders = contenders
        self._model = model
        self._trainings: dict[str, Training] = {}
        self._functions: dict[str, Any] = {}
        self._updaters: dict[str, Any] = {}
        self._scopes = contextlib.ExitStack()  # Never closed: the process is killed.
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self._coordinator = None
        self._strategy = tf.distribute.get_strategy()
        self._num_workers = 1
        if "ps" in resolver.cluster_spec().jobs:
            self._num_workers = resolver.cluster_spec().num_tasks("worker")
            self._strategy = tf.distribute.ParameterServerStrategy(resolver)
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(
                self._strategy
            )
            per_worker = self._coordinator.create_per_worker_dataset(self._dataset)
            self._iterator = iter(per_worker)
        else:
            self._iterator = iter(self._dataset())

    def open(self, name: str) -> None:
        """Makes a contender's variables and functions, and starts updates."""
        with self._strategy.scope():
            training = Training(self._contenders[name], self._model, self._num_workers)
        self._trainings[name] = training

        def step(ids):
            self._strategy.run(training.step, args=(tf.unstack(ids),))

        def steps(batches):
            for batch in batches:
                step(batch)

        at_once = training.steps_per_call
        self._functions[name] = (
            tf.function(
                lambda x: steps([next(x) for _ in range(at_once)]), autograph=False
            ),
            tf.function(step),
            tf.function(lambda x: steps(tf.unstack(x, at_once)), autograph=False),
        )
        if training.is_synchronous:
            self._updaters[name] = self._scopes.enter_context(
                training.optimizer.updater(self._strategy)
            )

    def run(self, name: str, steps: int) -> float:
        """Lets each worker make `steps` steps, in whole calls; returns the seconds."""
        begin = time.perf_counter()
        function, _, _ = self._functions[name]
        calls = steps // self._trainings[name].steps_per_call
        for _ in range(calls * self._num_workers):
            self._schedule(function, self._iterator)
        self._finish(name)
        return time.perf_counter() - begin

    def rehearse(self, name: str, steps: int) -> list[list[float]]:
        """Makes updates on equal batches, and returns rows of a table.

        No gradient is of the next batch: the gradients of one update are of one batch,
        so that their mean is equal to each of them.
        """
        _, function, _ = self._functions[name]
        copies = self._num_workers if self._trainings[name].is_synchronous else 1
        rehearsed = batches(self._model, 1, steps)
        for batch in rehearsed:
            for _ in range(copies):
                self._schedule(function, tf.constant(batch))
            self._finish(name)
        return self._trainings[name].tables.rows(rehearsed[:, 0, :32].ravel()).tolist()

    def updates(self, name: str) -> int:
        """Returns how many updates were made."""
        return self._trainings[name].updates()

    def messages(self, name: str) -> float:
        """Counts the messages of a step between a worker and parameter servers."""
        _, _, function = self._functions[name]
        at_once = self._trainings[name].steps_per_call
        shape = [at_once, self._model["tables"], self._model["examples"]]
        with self._strategy.scope():
            concrete = function.get_concrete_function(tf.TensorSpec(shape, tf.int32))
        return hops.messages(concrete) / at_once

    def bytes_on_servers(self, name: str) -> list[int]:
        """Returns the bytes of tables and their slots on each parameter server."""
        sizes: dict[str, int] = {}
        training = self._trainings[name]
        tables = training.tables.variables
        slots = [x for v in tables for x in training.optimizer.slots(v).values()]
        for variable in [*tables, *slots]:
            native = keras_variants.native(variable)
            size = native.shape.num_elements() * native.dtype.size
            sizes[native.device] = sizes.get(native.device, 0) + size
        return list(sizes.values())

    def _dataset(self, context=None) -> tf.data.Dataset:
        del context
        data = tf.data.Dataset.from_tensor_slices(batches(self._model, 0, _BATCHES))
        return data.shuffle(_BATCHES).repeat()

    def _schedule(self, function, argument) -> None:
        if self._coordinator is None:
            function(argument)
        else:
            self._coordinator.schedule(function, args=(argument,))

    def _finish(self, name) -> None:
        if self._coordinator is not None:
            self._coordinator.join()
        if name in self._updaters:
            self._updaters[name].drain()


if __name__ == "__main__":
    serving.serve(Trainer)
