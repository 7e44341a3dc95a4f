"""Training of Keras variables; the benchmark tells it what to run.

    python keras_trainer.py HOST PORT

It is a task of TF_CONFIG. With parameter servers it is the chief, which coordinates the
workers; without them it is one of the workers of a `MultiWorkerMirroredStrategy`.

Both run a custom loop, as the `fit` of Keras 3 goes with neither strategy, on the
variables of Keras layers, with optimizers of the Keras that `tf.keras` is. All
contenders have the same step: the next batch of a `tf.data.Dataset` of the worker's
own, a tape, `apply_gradients`; one call of a `tf.function` for each step.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hops
import keras_variants
import numpy as np
import replica
import serving
import tensorflow as tf

import tf_syncrep as tfs

# With so large an epsilon the weights depend on the number by which a gradient was
# divided.
_ADAM = {"learning_rate": 0.1, "epsilon": 0.1}
_OPTIMIZERS = {
    "AdamAsync": functools.partial(tfs.keras.AdamAsync, **_ADAM),
    "Adam": functools.partial(tf.keras.optimizers.Adam, **_ADAM),
    "SGD": tf.keras.optimizers.SGD,
}
# The weights of a planted model are drawn with this seed, apart from all others.
_PLANTED_SEED = 1000
_NOISE = 0.1
_HELD_OUT = 16  # batches


class Training:
    """One contender's variables and optimizer."""

    def __init__(
        self, contender: Mapping[str, Any], model: Mapping[str, Any], num_workers: int
    ):
        """Makes them where the current strategy places them.

        `contender`: "inner", the optimizer's name, and "sync", whether SyncReplicas is
        to be around it; "options" of the optimizer. `model`: as `replica.Graph` takes
        it; also the number of "tables" of "rows", 1 by default, and of dense "layers".
        """
        layers = tf.keras.layers
        self._is_embedding = bool(model["rows"])
        if self._is_embedding:
            self._layers = [
                layers.Embedding(
                    model["rows"], replica.WIDTH, embeddings_initializer="ones"
                )
                for _ in range(model.get("tables", 1))
            ]
            shape = (None,)
        else:
            width = model["width"]
            self._layers = [
                layers.Dense(
                    width,
                    activation="tanh",
                    use_bias=False,
                    kernel_initializer=tf.keras.initializers.RandomNormal(
                        stddev=width**-0.5, seed=number
                    ),
                )
                for number in range(model.get("layers", replica.LAYERS))
            ]
            shape = (None, width)
        for layer in self._layers:
            layer.build(shape)
        self.variables = [layer.trainable_variables[0] for layer in self._layers]
        self.optimizer = _OPTIMIZERS[contender["inner"]](**contender.get("options", {}))
        self.is_synchronous = contender["sync"]
        if self.is_synchronous:
            self.optimizer = tfs.keras.SyncReplicas(
                self.optimizer, num_workers, spares=False
            )
        self.optimizer.build(self.variables)

    def gradients(self, batch: Any, share: float = 1.0) -> list[Any]:
        """Computes the gradients of a batch, times a share."""
        with tf.GradientTape() as tape:
            loss = share * self.loss(batch)
        return tape.gradient(loss, list(map(keras_variants.native, self.variables)))

    def apply(self, gradients: Sequence[Any]) -> None:
        """Makes an update, or hands in the gradients for one."""
        pairs = zip(gradients, self.variables, strict=True)
        self.optimizer.apply_gradients(pairs)

    def step(self, batch: tf.Tensor) -> None:
        """One step of a worker."""
        synchronously = self.is_synchronous
        with self.optimizer.step() if synchronously else contextlib.nullcontext():
            self.apply(self.gradients(batch))

    def updates(self) -> int:
        """How many updates were made."""
        return int(keras_variants.native(self.optimizer.iterations).numpy())

    def weights(self, rows: int) -> list[np.ndarray]:
        """Reads the weights; of a table it reads the first rows."""
        natives = map(keras_variants.native, self.variables)
        if self._is_embedding:
            return [tf.gather(table, np.arange(rows)).numpy() for table in natives]
        return [weights.numpy() for weights in natives]

    def loss(self, batch: tf.Tensor) -> tf.Tensor:
        """Computes the loss of a batch."""
        if self._is_embedding:
            # By the layer's own call Keras 3 would read the whole table in each step.
            looked_up = [
                tf.nn.embedding_lookup(keras_variants.native(table), batch)
                for table in self.variables
            ]
            return tf.add_n([tf.reduce_sum(tf.square(rows)) for rows in looked_up])
        signal, target = tf.unstack(batch)
        for layer in self._layers:
            signal = layer(signal)
        return tf.reduce_mean(tf.square(signal - target))


class Trainer:
    """The methods that the benchmark calls in this process."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        num_workers: int,
        contenders: Mapping[str, Any],
        model: Mapping[str, Any],
    ):
        """Opens nothing yet.

        `contenders`: first arguments of `Training`, by their names.
        """
        self._strategy = strategy
        self._num_workers = num_workers
        self._contenders = contenders
        self._model = model
        self._trainings: dict[str, Training] = {}
        self._functions: dict[str, tuple[Any, Any]] = {}

    def open(self, name: str) -> None:
        """Makes a contender's variables and functions."""
        with self._strategy.scope():
            self._trainings[name] = self._new(self._contenders[name])

    def updates(self, name: str) -> int:
        """Returns how many updates were made."""
        return self._trainings[name].updates()

    def check(self, name: str, steps: int) -> None:
        """Compares the weights after `rehearse` with those of one process.

        It makes each update with the mean of the gradients that the workers should
        have computed, by the same optimizer, without a strategy.

        Raises AssertionError: they differ.
        """
        alone = self._new({**self._contenders[name], "sync": False})
        rows = self._num_workers * self._model["ids"]
        initial = alone.weights(rows)
        for step in range(steps):
            batches = self._rehearsal_batches(step)
            gradients = [alone.gradients(batch) for batch in batches]
            alone.apply([_mean(parts) for parts in zip(*gradients, strict=True)])
        for before, actual, wanted in zip(
            initial,
            self._trainings[name].weights(rows),
            alone.weights(rows),
            strict=True,
        ):
            moved = np.max(np.abs(wanted - before))
            assert moved > 0, f"{name} is not trained"
            np.testing.assert_allclose(
                actual, wanted, rtol=0, atol=1e-2 * moved, err_msg=name
            )

    def _new(self, contender: Mapping[str, Any]) -> Training:
        return Training(contender, self._model, self._num_workers)

    def _on_strategy(self, step: Callable[[tf.Tensor], None]) -> tuple[Any, Any]:
        """Makes functions of a step: of an iterator, and of a batch itself."""
        run = self._strategy.run
        return (
            tf.function(lambda iterator: run(step, args=(next(iterator),))),
            tf.function(lambda batch: run(step, args=(batch,))),
        )

    def _rehearsal_batches(self, step: int) -> list[np.ndarray]:
        """A batch for each worker; no row of a table is in two of them.

        If a row were in several, the Adam of Keras 3 would add up squares.
        """
        ids = self._model["ids"]
        return [
            np.arange(ids) + worker * ids
            if self._model["rows"]
            else self._dense_batch(step * self._num_workers + worker)
            for worker in range(self._num_workers)
        ]

    def _dense_batch(self, seed: int) -> np.ndarray:
        width = self._model["width"]
        random = np.random.default_rng(seed)
        signal, target = random.normal(size=(2, replica.EXAMPLES, width))
        if self._model.get("planted"):
            noise, target = _NOISE * target, signal
            for weights in _weights(self._model, _PLANTED_SEED):
                target = np.tanh(target @ weights)
            target = target + noise
        return np.stack([signal, target]).astype(np.float32)

    def _dataset(self) -> tf.data.Dataset:
        """Batches for ever: of rows in an order of its own on each worker."""
        rows, ids = self._model["rows"], self._model["ids"]
        if rows:
            random = np.random.default_rng(0)
            batches = random.integers(rows, size=(replica.BATCHES, ids))
        else:
            number = self._model.get("batches", 1)
            batches = np.stack([self._dense_batch(seed) for seed in range(number)])
        data = tf.data.Dataset.from_tensor_slices(batches)
        return data.shuffle(len(batches)).repeat()


class Coordinator(Trainer):
    """The chief of a `ParameterServerStrategy`."""

    def __init__(self, contenders: Mapping[str, Any], model: Mapping[str, Any]):
        """Connects to workers and parameter servers; see `Trainer`."""
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        num_workers = resolver.cluster_spec().num_tasks("worker")
        super().__init__(strategy, num_workers, contenders, model)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._updaters: dict[str, Any] = {}
        self._scopes = contextlib.ExitStack()  # Never closed: the process is killed.
        self._empty = tf.function(lambda iterator: next(iterator))
        self._iterator = iter(
            self._coordinator.create_per_worker_dataset(lambda: self._dataset())
        )

    def open(self, name: str) -> None:
        """Makes variables and functions, and starts updates."""
        super().open(name)
        training = self._trainings[name]
        self._functions[name] = self._on_strategy(training.step)
        if training.is_synchronous:
            self._updaters[name] = self._scopes.enter_context(
                training.optimizer.updater(self._strategy)
            )

    def run(self, name: str, steps: int) -> None:
        """Lets the workers compute `steps` gradients each, on average."""
        function, _ = self._functions[name]
        for _ in range(steps * self._num_workers):
            self._coordinator.schedule(function, args=(self._iterator,))
        self._finish(name)

    def rehearse(self, name: str, steps: int) -> None:
        """Does the same with the batches of `check`, one update after the other."""
        _, function = self._functions[name]
        for step in range(steps):
            for batch in self._rehearsal_batches(step):
                self._coordinator.schedule(function, args=(tf.constant(batch),))
            self._finish(name)

    def run_empty(self, steps: int) -> None:
        """Lets the workers take equally many batches, and do nothing with them."""
        for _ in range(steps * self._num_workers):
            self._coordinator.schedule(self._empty, args=(self._iterator,))
        self._coordinator.join()

    def hops(self, name: str) -> list[int]:
        """Counts the hops of a step on a batch, and of an update by the coordinator."""
        _, step = self._functions[name]
        batch = tf.TensorSpec([None], tf.int64)
        counted = [(step, batch)]
        if name in self._updaters:
            rounds = self._trainings[name].optimizer._rounds
            update = tf.function(rounds._wait_and_apply)
            counted.append((update, tf.TensorSpec([], tf.int64)))
        with self._strategy.scope():
            return [
                hops.count(function.get_concrete_function(argument))
                for function, argument in counted
            ]

    def restart(self, name: str, seed: int) -> None:
        """Gives a contender of dense layers other weights to begin with."""
        variables = self._trainings[name].variables
        for variable, weights in zip(
            variables, _weights(self._model, seed), strict=True
        ):
            variable.assign(weights)

    def held_out_loss(self, name: str) -> float:
        """Computes the loss of batches that nobody trains on."""
        first = self._model["batches"]
        losses = [
            self._trainings[name].loss(tf.constant(self._dense_batch(seed)))
            for seed in range(first, first + _HELD_OUT)
        ]
        return float(np.mean(losses))

    def _finish(self, name: str) -> None:
        self._coordinator.join()
        if name in self._updaters:
            self._updaters[name].drain()


class Mirror(Trainer):
    """A worker of a `MultiWorkerMirroredStrategy`."""

    def __init__(self, contenders: Mapping[str, Any], model: Mapping[str, Any]):
        """Waits for the other workers; see `Trainer`."""
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        super().__init__(strategy, strategy.num_replicas_in_sync, contenders, model)
        self._index = resolver.task_id
        self._iterator = iter(self._dataset())

    def open(self, name: str) -> None:
        """Makes variables and functions; all workers have to."""
        super().open(name)
        training = self._trainings[name]

        def step(batch: tf.Tensor) -> None:
            # The optimizer adds up the gradients of all workers.
            training.apply(training.gradients(batch, 1 / self._num_workers))

        self._functions[name] = self._on_strategy(step)

    def run(self, name: str, steps: int) -> None:
        """Makes updates; all workers have to."""
        function, _ = self._functions[name]
        for _ in range(steps):
            function(self._iterator)

    def rehearse(self, name: str, steps: int) -> None:
        """Does the same with the batches of `check`."""
        _, function = self._functions[name]
        for step in range(steps):
            function(tf.constant(self._rehearsal_batches(step)[self._index]))


def _weights(model: Mapping[str, Any], seed: int) -> list[np.ndarray]:
    """Draws the weights of dense layers."""
    random = np.random.default_rng(seed)
    width = model["width"]
    return [
        random.normal(scale=width**-0.5, size=(width, width)).astype(np.float32)
        for _ in range(model["layers"])
    ]


def _mean(gradients: Sequence[Any]) -> Any:
    if not isinstance(gradients[0], tf.IndexedSlices):
        return tf.add_n(gradients) / len(gradients)
    return tf.IndexedSlices(
        tf.concat([gradient.values for gradient in gradients], 0) / len(gradients),
        tf.concat([gradient.indices for gradient in gradients], 0),
        gradients[0].dense_shape,
    )


def main() -> None:
    """Serves one benchmark, with the servers that its cluster has."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    has_servers = "ps" in resolver.cluster_spec().jobs
    serving.serve(Coordinator if has_servers else Mirror)


if __name__ == "__main__":
    main()
