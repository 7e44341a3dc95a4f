"""What tests need to know about the Keras that `tf.keras` is, and its optimizers."""

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


def small_model(seed: int = 1) -> Any:
    """Returns an embedding followed by a dense layer: three words to one number."""
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential(
        [
            layers.Input((3,), dtype="int32"),
            layers.Embedding(20, 4),
            layers.Flatten(),
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
