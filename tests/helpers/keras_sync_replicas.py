"""Code that tests of tfs.keras.SyncReplicas share with the programs that they run."""

import re
from collections.abc import Callable
from typing import Any

import keras_variants
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

NUM_BATCHES = 16
BATCH_SIZE = 8

# Inner optimizers by name, with the features of an update: clipping, weight decay,
# averages, a schedule.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf.keras.optimizers.SGD(0.1),
    "clipped": lambda: tfs.keras.AdamAsync(
        0.05, global_clipnorm=0.1, weight_decay=0.01
    ),
    "averaged": lambda: tfs.keras.AdamAsync(
        0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "ftrl": lambda: tfs.keras.FTRL(0.05, l1_regularization_strength=0.01),
    "lazy_nesterov": lambda: tfs.keras.SGD(0.05, momentum=0.5, nesterov=True),
    "scheduled": lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.5)
    ),
}


def one_batch() -> tf.data.Dataset:
    """One batch for `small_model`, in which some rows of its table occur again."""
    return tf.data.Dataset.from_tensors(keras_variants.small_data(8))


def iterations_of(optimizer: Any) -> int:
    return int(keras_variants.native(optimizer.iterations).numpy())


def make_model(shards: int | None = None) -> Any:
    """An embedding and a dense layer, and a table with a row for each batch.

    The tables have several parts, or one, which a partitioner may divide.
    """
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    inputs = layers.Input((4,), dtype="int32")
    words, batch = inputs[:, :3], inputs[:, 3]
    embedded = layers.Flatten()(
        tfs.keras.Embedding(20, 4, name="words", shards=shards)(words)
    )
    row = tfs.keras.Embedding(
        NUM_BATCHES, 1, embeddings_initializer="zeros", name="batches", shards=shards
    )(batch)
    outputs = layers.Concatenate()([layers.Dense(1)(embedded), row])
    return tf.keras.Model(inputs, outputs)


def weights_of(model: Any) -> list[np.ndarray]:
    """The weights; the parts of a partitioned weight are put together again."""
    weights: dict[str, list[np.ndarray]] = {}
    for variable in model.trainable_variables:
        name = getattr(variable, "path", variable.name).split("/part_")[0]
        name = re.sub(r"/embeddings_\d+", "/embeddings in turns", name)
        weights.setdefault(name, []).append(np.asarray(variable))
    return [
        _in_turns(parts) if name.endswith("in turns") else np.concatenate(parts)
        for name, parts in ((x.removesuffix(":0"), y) for x, y in weights.items())
    ]


def _in_turns(parts: list[np.ndarray]) -> np.ndarray:
    """A table whose rows are dealt out to its parts in turn."""
    table = np.concatenate(parts)
    for number, part in enumerate(parts):
        table[number :: len(parts)] = part
    return table


def loss(targets: Any, outputs: Any) -> Any:
    """The mean squared error, and the row of each example's batch.

    The gradient of this row is 1 in its batch. So the mean gradient of an update tells
    how often it contains each batch.
    """
    error = tf.reshape(targets, [-1]) - outputs[:, 0]
    return tf.reduce_mean(error**2 + outputs[:, 1])


def data() -> tuple[np.ndarray, np.ndarray]:
    """All examples, batch after batch; the last column is the batch's number."""
    words, targets = keras_variants.small_data(NUM_BATCHES * BATCH_SIZE)
    numbers = np.repeat(np.arange(NUM_BATCHES, dtype=np.int32), BATCH_SIZE)
    return np.concatenate([words, numbers[:, None]], axis=1), targets


def dataset(context: Any = None) -> tf.data.Dataset:
    """Batches for ever, in a different order on each worker."""
    del context
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH_SIZE)
    return batches.shuffle(NUM_BATCHES).repeat()


def make_strategy(num_parts: int = 1) -> Any:
    """The strategy of TF_CONFIG's cluster; variables have several parts."""
    partitioner = None
    if num_parts > 1:
        partitioners = tf.distribute.experimental.partitioners
        partitioner = partitioners.FixedShardsPartitioner(num_parts)
    return tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=partitioner,
    )


def make(
    strategy: Any,
    quorum: int,
    total: int | None,
    steps_per_execution: int = 1,
    on_update: Callable[[int], Any] | None = None,
    shards: int | None = None,
    **options: Any,
) -> tuple[Any, Any, "Recorder"]:
    """Makes a model, its SyncReplicas of SGD with these options, and its recorder.

    By default every gradient counts while nothing fails.
    """
    with strategy.scope():
        model = make_model(shards)
        optimizer = tfs.keras.SyncReplicas(
            OPTIMIZERS["sgd"](), quorum, total, **{"spares": False, **options}
        )
        model.compile(optimizer, loss=loss, steps_per_execution=steps_per_execution)
        optimizer.build(model.trainable_variables)
    return model, optimizer, Recorder(model, optimizer, on_update)


class CustomLoop:
    """The loop of a user who schedules steps, as in TensorFlow's tutorial."""

    def __init__(self, strategy: Any, model: Any, optimizer: Any, by_run: bool = False):
        """Makes the step; `by_run`: by `strategy.run`."""
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._batches = iter(self.coordinator.create_per_worker_dataset(dataset))
        variables = model.trainable_variables

        def replica_step(inputs, targets):
            with tf.GradientTape() as tape:
                value = loss(targets, model(inputs, training=True))
            gradients = tape.gradient(value, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return value

        @tf.function
        def step(batches):
            batch = next(batches)
            with optimizer.step():
                if by_run:
                    return strategy.run(replica_step, args=batch)
                return replica_step(*batch)

        self._step = step

    def make_steps(self, steps: int) -> None:
        """Schedules a number of steps, and waits for them."""
        for _ in range(steps):
            self.coordinator.schedule(self._step, args=(self._batches,))
        self.coordinator.join()


class Recorder:
    """Observes an optimizer: keeps the weights after each update, before the next."""

    def __init__(self, model: Any, optimizer: Any, on_update: Any = None):
        """Begins to; `on_update` is called after each update with its number."""
        self._model, self._optimizer, self._on_update = model, optimizer, on_update
        self._weights: list[list[np.ndarray]] = []
        self._step: int | None = None
        optimizer.add_observer(self._record)

    def _record(self, step: int) -> None:
        # A training begins where another has ended; by now callbacks have restored
        # their state.
        is_update = self._step is not None and step == self._step + 1
        self._step = step
        if is_update or not self._weights:
            self._weights.append(weights_of(self._model))
        if is_update and self._on_update is not None:
            self._on_update(step)

    def result(self) -> dict[str, Any]:
        """What `assert_exact` checks: the weights after each update, the counters."""
        self._step = None  # the next training begins anew
        stats = self._optimizer.stats()
        last = weights_of(self._model)
        if not all(map(np.array_equal, last, self._weights[-1])):
            self._weights.append(last)
        return {
            "weights": [[x.tolist() for x in weights] for weights in self._weights],
            "stats": stats,
            "iterations": iterations_of(self._optimizer),
        }
