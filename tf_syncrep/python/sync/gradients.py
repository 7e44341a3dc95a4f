"""What gradients are made of: tensors, dense ones and `tf.IndexedSlices`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def as_tensors(gradient: Any) -> Any:
    """Returns a gradient whose parts are tensors: `tf.IndexedSlices` takes any values.

    Args:
        gradient: what can be made a tensor, or `tf.IndexedSlices`.

    Returns:
        A tensor or `tf.IndexedSlices`. The dense shape is the variable's, and left out.
    """
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.convert_to_tensor(gradient.values)
        return tf.IndexedSlices(values, tf.convert_to_tensor(gradient.indices))
    return tf.convert_to_tensor(gradient)


def flatten(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the tensors that gradients are made of, indices included.

    Args:
        gradients: tensors and `tf.IndexedSlices`.

    Returns:
        All their tensors.
    """
    return tf.nest.flatten(gradients, expand_composites=True)
