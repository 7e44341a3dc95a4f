"""Makes datasets of data by Keras' own adapters, of arrays without new functions."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.keras.compat.data_adapters import (
    Adapter,
    dataset_of,
    is_seeded,
    stock_adapter,
)


def adapter_of(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: Any = False,
    class_weight: Mapping[int, float] | None = None,
    steps: int | None = None,
) -> Adapter:
    """Returns the adapter of some data; the arguments are those of `Model.fit`."""
    options = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "class_weight": class_weight,
        "steps": steps,
    }
    data = (x, y, sample_weight)
    # Functions cannot be kept for other arrays if Keras looks at the values of the
    # classes, or if a seed is part of the function.
    if class_weight is None and not (shuffle and is_seeded()) and _are_arrays(data):
        stock, dataset = _of_arrays(data, options)
    else:
        stock = stock_adapter(data, **options)
        dataset = dataset_of(stock, class_weight)
    return Adapter(stock, dataset, steps)


def _are_arrays(data: tuple[Any, Any, Any]) -> bool:
    """Returns whether data is nothing but dense arrays and tensors of numbers."""
    return all(
        leaf is None
        or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf")
        or isinstance(leaf, tf.Tensor)
        for leaf in tf.nest.flatten(data)
    )


def _as_tensor(array: Any) -> tf.Tensor:
    """Makes a tensor of an array, with the dtype that Keras would give it."""
    is_float = isinstance(array, np.ndarray) and array.dtype.kind == "f"
    return tf.convert_to_tensor(array, tf.keras.backend.floatx() if is_float else None)


# These functions make datasets of arrays. For each of the last sorts of arrays this has
# the sort, its function, and the adapter that was made when the function was traced.
_of_sorts: collections.deque[tuple[Any, Callable[..., Any], list[Any]]] = (
    collections.deque(maxlen=16)
)


def _of_arrays(data: tuple[Any, Any, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """Makes the adapter of arrays, and their dataset.

    Keras' adapter traces functions for each dataset. When the coordinator of a cluster
    traces a function, or forgets one, it waits for every task in turn, and a task that
    is busy or hangs holds up the whole process. So those functions are traced within
    another one, whose arguments are the arrays, and which is kept for other arrays of
    the same shapes.
    """
    leaves = tf.nest.flatten(data)
    arrays = [_as_tensor(leaf) for leaf in leaves if leaf is not None]
    specs = iter([tf.TensorSpec(array.shape, array.dtype) for array in arrays])
    sort = tf.nest.map_structure(lambda x: None if x is None else next(specs), data)
    key = (sort, options)
    for known, function, adapters in tuple(_of_sorts):
        if known == key:
            return adapters[0], function(arrays)
    adapters: list[Any] = []

    def make(arrays: list[tf.Tensor]) -> Any:
        rest = iter(arrays)
        tensors = tf.nest.map_structure(
            lambda spec: None if spec is None else next(rest), sort
        )
        adapters.append(stock_adapter(tensors, **options))
        return dataset_of(adapters[-1], None)

    function = tf.function(make, autograph=False).get_concrete_function(arrays)
    dataset = function(arrays)
    _of_sorts.append((key, function, adapters))
    return adapters[0], dataset


def without_optionals(batch: Any) -> Any:
    """Replaces optionals, which Keras 3's adapters use for None, by None."""
    return tf.nest.map_structure(
        lambda x: None if isinstance(x, tf.experimental.Optional) else x, batch
    )
