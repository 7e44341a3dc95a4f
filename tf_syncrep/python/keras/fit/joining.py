"""Joins predictions along the batch, as Keras does."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def are_alike(results: Sequence[Any]) -> bool:
    """Returns whether outputs of steps are tensors that differ in batch sizes alone."""
    return all(
        isinstance(x, tf.Tensor) and x.shape.rank and x.shape[1:].is_fully_defined()
        for x in tf.nest.flatten(list(results))
    )


def joined(outputs: Sequence[Any]) -> Any:
    """Joins outputs of batches along the batch.

    Returns a structure of the same; arrays of which other sizes differ become ragged.
    """
    if len(outputs) == 1:
        return outputs[0]
    return tf.nest.map_structure(lambda *parts: _joined(parts), *outputs)


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, [*parts])
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, axis=0)
    if np.ndim(parts[0]) == 0:
        return np.stack(parts)
    sizes = [*zip(*(part.shape[1:] for part in parts), strict=True)]
    ragged = [axis for axis, some in enumerate(sizes, 1) if len({*some}) > 1]
    if not ragged:
        return np.concatenate(parts)
    rows = [tf.RaggedTensor.from_tensor(part, ragged_rank=ragged[-1]) for part in parts]
    return tf.concat(rows, axis=0)
