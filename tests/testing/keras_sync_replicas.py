"""What the tests of tfs.keras.SyncReplicas share."""

from collections.abc import Callable
from typing import Any

import keras_variants
import tensorflow as tf

import tf_syncrep as tfs

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
