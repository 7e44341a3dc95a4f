"""The tensors of gradients, dense ones and `tf.IndexedSlices`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def as_tensors(gradient: Any) -> Any:
    """Returns a gradient of tensors; parts of `tf.IndexedSlices` need not be any."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.convert_to_tensor(gradient.values)
        return tf.IndexedSlices(values, tf.convert_to_tensor(gradient.indices))
    return tf.convert_to_tensor(gradient)


def identity(gradient: Any) -> Any:
    """Returns the same gradient, whose values wait for control dependencies."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.identity(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.identity(gradient)


def flatten(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the tensors of all gradients, indices included."""
    return tf.nest.flatten(gradients, expand_composites=True)
