"""What tests need to know about the Keras that `tf.keras` is, and its optimizers."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import adam_async_reference as reference
import numpy as np
import tensorflow as tf

IS_KERAS_3 = hasattr(tf.keras, "ops")

# It is exact in float32, in which Keras keeps a learning rate.
LEARNING_RATE = 0.0625


def native(variable: Any) -> tf.Variable:
    """Returns the TensorFlow variable behind a variable of any Keras."""
    is_keras = IS_KERAS_3 and isinstance(variable, tf.keras.Variable)
    return variable.value if is_keras else variable


def variables_of(optimizer: Any) -> list[Any]:
    """Returns those of an optimizer, which are a method's result in Keras 2."""
    found = optimizer.variables
    return list(found if isinstance(found, list | tuple) else found())


def all_variables(model: Any) -> list[Any]:
    """Returns the variables of a model and of its optimizer."""
    return [*model.variables, *variables_of(model.optimizer)]


def update(
    optimizer: Any, variables: Any, compute_loss: Callable[[], Any], **options: Any
) -> Any:
    """One update of variables by the gradients of a loss, which it returns.

    The options are those of `tf.GradientTape.gradient`.
    """
    with tf.GradientTape() as tape:
        loss = compute_loss()
    gradients = tape.gradient(loss, [native(x) for x in variables], **options)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Layers that are made within it have this dtype policy."""
    policies = tf.keras.mixed_precision
    before = policies.global_policy()
    policies.set_global_policy(name)
    try:
        yield
    finally:
        policies.set_global_policy(before)


def state_of(optimizer: Any, variable: Any) -> reference.State:
    """Returns a variable, and the slots that an AdamAsync keeps for it."""
    slots = optimizer.slots(variable).values()
    return reference.State(*[x.numpy() for x in (variable, *slots)])


def assert_states_close(
    actual: reference.State, expected: reference.State, tolerance: float
) -> None:
    """Compares a state to the twin's."""
    for name, got, want in zip(actual._fields, actual, expected, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64).reshape(np.shape(want)),
            want,
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )


def unique_rows(gradient: Any) -> Any:
    """Each row of a sparse gradient once: stock optimizers square each occurrence."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def train_on_batch(
    model: Any, inputs: Any, targets: Any, optimizer: Any = None
) -> float:
    """One update, in which sparse gradients name each row once, and its loss.

    `optimizer`: by default that of the model.
    """
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True)
        loss = tf.reduce_mean((outputs - targets) ** 2)
    gradients = map(unique_rows, tape.gradient(loss, [native(x) for x in variables]))
    optimizer = optimizer or model.optimizer
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return float(loss)


def small_model(*hidden: Any) -> Any:
    """An embedding, other layers if there are, and a dense one: words to a number."""
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential(
        [
            layers.Input((3,), dtype="int32"),
            layers.Embedding(20, 4),
            layers.Flatten(),
            *hidden,
            layers.Dense(1),
        ]
    )


def slow_decay(learning_rate: float) -> Any:
    """Returns a schedule that hardly changes over the steps of a test."""
    return tf.keras.optimizers.schedules.ExponentialDecay(learning_rate, 1000, 0.9)


def small_data(num_examples: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Words and numbers for `small_model`."""
    random = np.random.default_rng(0)
    words = random.integers(0, 20, (num_examples, 3)).astype(np.int32)
    return words, (words.sum(axis=1, keepdims=True) / 30).astype(np.float32)


def for_ever(inputs: Any, targets: Any) -> Callable[..., tf.data.Dataset]:
    """A function that makes datasets in which one batch repeats, on each worker."""
    return lambda _=None: tf.data.Dataset.from_tensors((inputs, targets)).repeat()


def make_two_cpus() -> None:
    """Makes logical devices for two replicas, before TensorFlow starts."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    tf.config.set_logical_device_configuration(cpu, logical)


class Counter(tf.keras.layers.Layer):
    """Counts its calls by itself."""

    def build(self, _):
        self.counted = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="counted"
        )

    def call(self, x):
        self.counted.assign_add(1.0)
        return x
