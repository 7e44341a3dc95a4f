"""What the tests of tfs.keras.SyncReplicas share, and programs that run in tasks.

Programs record which batches each update was made of, and tests replay them. A model
that is trained for this has, beside what it learns, a table with a row for each batch.
Its loss holds the row of its batch, so that the row's gradient is 1; the mean gradient
of the row tells how often the batch is in an update.
"""

from collections.abc import Callable
from typing import Any

import keras_variants
import numpy as np
import sync_accounting
import tensorflow as tf

import tf_syncrep as tfs

NUM_BATCHES = 16
BATCH_SIZE = 8
_WORDS, _DIM = 20, 4

# Inner optimizers by name. Those that look at past gradients, and those that do not;
# with what belongs to an update: clipping, weight decay, averages, a schedule.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: tf.keras.optimizers.Adam(0.05),
    "sgd": lambda: tf.keras.optimizers.SGD(0.1),
    "clipped": lambda: tfs.keras.AdamAsync(
        0.05, global_clipnorm=0.1, weight_decay=0.01
    ),
    "averaged": lambda: tfs.keras.AdamAsync(
        0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "scheduled": lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.5)
    ),
}


def one_batch() -> tf.data.Dataset:
    """One batch for `small_model`, in which some rows of its table come again."""
    return tf.data.Dataset.from_tensors(keras_variants.small_data(8))


def unique_rows(gradient: Any) -> Any:
    """A gradient as what it is the sum of: each row of a sparse one once.

    Stock optimizers of Keras 3 square each occurrence of a row by itself.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def loss_of(model: Any, words: Any, targets: Any) -> Any:
    """The mean squared error of a batch."""
    return tf.reduce_mean((model(tf.constant(words), training=True) - targets) ** 2)


def gradients_of(model: Any, words: Any, targets: Any) -> list[Any]:
    """The gradients of a batch."""
    with tf.GradientTape() as tape:
        loss = loss_of(model, words, targets)
    return tape.gradient(loss, model.trainable_variables)


def train_on_batch(model: Any, optimizer: Any, words: Any, targets: Any) -> None:
    """One update on one batch, without SyncReplicas."""
    variables = model.trainable_variables
    gradients = map(unique_rows, gradients_of(model, words, targets))
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def iterations_of(optimizer: Any) -> int:
    """How many updates an optimizer has counted."""
    return int(keras_variants.native(optimizer.iterations).numpy())


def make_model() -> Any:
    """An embedding and a dense layer, and the table of batches."""
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    inputs = layers.Input((4,), dtype="int32")
    words, batch = inputs[:, :3], inputs[:, 3]
    embedded = layers.Flatten()(layers.Embedding(_WORDS, _DIM, name="words")(words))
    prediction = layers.Dense(1)(layers.Dense(6, activation="tanh")(embedded))
    row = layers.Embedding(
        NUM_BATCHES, 1, embeddings_initializer="zeros", name="batches"
    )(batch)
    return tf.keras.Model(inputs, layers.Concatenate()([prediction, row]))


def weights_of(model: Any) -> list[np.ndarray]:
    """The weights; parts of a partitioned one are put together again."""
    weights: dict[str, list[np.ndarray]] = {}
    for variable in model.trainable_variables:
        name = getattr(variable, "path", variable.name).split("/part_")[0]
        weights.setdefault(name, []).append(np.asarray(variable))
    return [np.concatenate(parts) for parts in weights.values()]


def loss(targets: Any, outputs: Any) -> Any:
    """The mean squared error, and the row of each example's batch."""
    error = tf.reshape(targets, [-1]) - outputs[:, 0]
    return tf.reduce_mean(error**2 + outputs[:, 1])


def data() -> tuple[np.ndarray, np.ndarray]:
    """All examples, batch after batch; the last column is the batch's number."""
    words, targets = keras_variants.small_data(NUM_BATCHES * BATCH_SIZE)
    numbers = np.repeat(np.arange(NUM_BATCHES, dtype=np.int32), BATCH_SIZE)
    return np.concatenate([words, numbers[:, None]], axis=1), targets


def dataset(seed: int) -> tf.data.Dataset:
    """Batches for ever, in an order of its own for each seed."""
    inputs, targets = data()
    batches = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(BATCH_SIZE)
    return batches.shuffle(NUM_BATCHES, seed=seed).repeat()


def make_strategy(num_parts: int = 1) -> Any:
    """The strategy of the cluster that TF_CONFIG names.

    Args:
        num_parts: the number of parts that variables are to have.
    """
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
    inner: str,
    quorum: int,
    total: int,
    steps_per_execution: int = 1,
    **options: Any,
) -> tuple[Any, Any]:
    """Makes a model, compiled with a SyncReplicas, and that.

    Args:
        strategy: made by `make_strategy`.
        inner: name of the inner optimizer.
        quorum: gradients in an update.
        total: workers.
        steps_per_execution: as in `compile`.
        **options: of SyncReplicas.
    """
    with strategy.scope():
        model = make_model()
        optimizer = tfs.keras.SyncReplicas(
            OPTIMIZERS[inner](), quorum, total, **options
        )
        model.compile(optimizer, loss=loss, steps_per_execution=steps_per_execution)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def train_step(model: Any, optimizer: Any, strategy: Any = None) -> Any:
    """The step of a custom loop, a `tf.function` of an iterator that returns the loss.

    Args:
        model: made by `make_model`.
        optimizer: the SyncReplicas.
        strategy: by whose `run` the step is made, as in TensorFlow's tutorial; None
            for no such call.
    """
    variables = model.trainable_variables

    def replica_step(inputs, targets):
        with tf.GradientTape() as tape:
            value = loss(targets, model(inputs, training=True))
        gradients = tape.gradient(value, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return value

    @tf.function
    def step(iterator):
        batch = next(iterator)
        with optimizer.step():
            if strategy is None:
                return replica_step(*batch)
            return strategy.run(replica_step, args=batch)

    return step


class Recorder:
    """Called after each update, before the next: keeps the weights."""

    def __init__(self, optimizer: Any, model: Any, on_update: Any = None):
        """Observes the optimizer.

        Args:
            optimizer: the SyncReplicas.
            model: made by `make_model`.
            on_update: called after each update with its number.
        """
        self._model = model
        self.weights: list[list[np.ndarray]] = []
        self._on_update = on_update
        self._step: int | None = None
        optimizer.add_observer(self._record)

    def _record(self, step: int) -> None:
        # A training begins where another has ended; by now callbacks have restored
        # what there is to restore.
        is_update = self._step is not None and step == self._step + 1
        self._step = step
        if is_update or not self.weights:
            self.weights.append(weights_of(self._model))
        if is_update and self._on_update is not None:
            self._on_update(step)

    def finish(self) -> list[list[Any]]:
        """The weights after each update, a last one at the end included."""
        self._step = None  # The next training begins anew.
        weights = weights_of(self._model)
        if any(
            not np.array_equal(a, b)
            for a, b in zip(weights, self.weights[-1], strict=True)
        ):
            self.weights.append(weights)
        return [[x.tolist() for x in weights] for weights in self.weights]


def replay(weights: list[list[Any]], make_inner: Any, counts: list[int]) -> None:
    """Makes the same updates in one process, without SyncReplicas, and compares.

    Args:
        weights: what `Recorder.finish` returned.
        make_inner: makes the inner optimizer.
        counts: how many gradients each update was made of.

    Raises:
        AssertionError: an update was not the mean of that many gradients of batches,
            each computed on the weights before the update.
    """
    assert len(weights) == len(counts) + 1
    inputs, targets = data()
    model, optimizer = make_model(), make_inner()
    variables = model.trainable_variables
    table = next(
        i for i, variable in enumerate(variables) if variable.shape[0] == NUM_BATCHES
    )
    for variable, value in zip(variables, weights[0], strict=True):
        variable.assign(np.array(value))
    for before, after, count in zip(weights, weights[1:], counts, strict=False):
        # SGD moves a row of the table by its rate times its mean gradient.
        change = np.array(before[table]) - np.array(after[table])
        rate = float(np.asarray(optimizer.learning_rate))
        times = change[:, 0] / rate * count
        np.testing.assert_allclose(times, np.round(times), atol=1e-3)
        times = np.round(times).astype(int)
        assert times.min() >= 0
        assert times.sum() == count
        gradients = []
        for number in np.repeat(np.arange(NUM_BATCHES), times):
            part = slice(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)
            with tf.GradientTape() as tape:
                value = loss(targets[part], model(tf.constant(inputs[part])))
            gradients.append(
                [tf.convert_to_tensor(x) for x in tape.gradient(value, variables)]
            )
        means = [sum(parts) / count for parts in zip(*gradients, strict=True)]
        optimizer.apply_gradients(zip(means, variables, strict=True))
        for variable, value in zip(variables, after, strict=True):
            np.testing.assert_allclose(
                np.asarray(variable), np.array(value), rtol=1e-4, atol=1e-5
            )
    assert iterations_of(optimizer) == len(counts)


def assert_exact(
    result: dict[str, Any],
    counts: list[int] | None = None,
    first_step: int | None = 0,
) -> None:
    """Replays a training that SGD made, and checks what holds of any that has ended.

    Args:
        result: "weights", "stats" and "iterations" of a program.
        counts: how many gradients each update was made of; by default the quorum,
            and of the last one what is left.
        first_step: `iterations` at its beginning, or None if that is not known.

    Raises:
        AssertionError: something was counted wrongly, or trained wrongly.
    """
    stats, updates = result["stats"], len(result["weights"]) - 1
    sync_accounting.assert_identities(stats)
    assert stats["in_flight"] == 0
    assert stats["updates"] == updates
    assert stats["step"] == result["iterations"]
    assert first_step in (None, result["iterations"] - updates)
    if counts is None:
        counts = [stats["quorum"]] * updates
        counts[-1] -= stats["quorum"] * updates - stats["applied"]
        assert 0 < counts[-1] <= stats["quorum"]
    assert stats["applied"] == sum(counts)
    replay(result["weights"], OPTIMIZERS["sgd"], counts)
