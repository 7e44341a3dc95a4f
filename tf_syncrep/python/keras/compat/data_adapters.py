"""Keras' own data adapters: whatever `Model.fit` takes for `x`, as a tf.data.Dataset.

Private, as `Model.fit` alone asks them: `get_data_adapter` in Keras 3 (checked with
Keras 3.0.5 to 3.15.1), `select_data_adapter` in Keras 2 (2.15.0, tf_keras 2.21.0).
"""

from __future__ import annotations

import collections
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Private: nothing public tells whether a seed is set, without the use of it.
from tensorflow.python.eager import context  # pyright: ignore

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

if IS_KERAS_3:
    from keras.src.trainers.data_adapters import get_data_adapter

    try:
        from keras.src.trainers.data_adapters.array_slicing import (
            train_validation_split,
        )
    except ImportError:  # Before Keras 3.3.
        from keras.src.trainers.data_adapters.data_adapter_utils import (
            train_validation_split,
        )
else:
    # The module beside that of Model, in "keras" or in "tf_keras".
    _keras_2 = importlib.import_module(
        tf.keras.Model.__module__.rpartition(".")[0] + ".data_adapter"
    )
    train_validation_split = _keras_2.train_validation_split

__all__ = ["Adapter", "train_validation_split", "without_optionals"]


class Adapter:
    """The data adapter that Keras chooses for some data.

    Attributes:
        dataset: batches for one epoch. In Keras 2 those of arrays have no end.
        steps_of_epoch: after how many of them an epoch ends; None if it is at the end.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        shuffle: Any = False,
        class_weight: Mapping[int, float] | None = None,
        steps: int | None = None,
    ):
        """Chooses it; the arguments are those of `Model.fit`."""
        options = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "class_weight": class_weight,
            "steps": steps,
        }
        data = (x, y, sample_weight)
        # Keras looks at the values of the classes, and a seed is part of a function.
        is_seeded = shuffle and context.global_seed() is not None
        if class_weight is None and not is_seeded and _are_arrays(data):
            self._adapter, self.dataset = _of_arrays(data, options)
        else:
            self._adapter = _adapter_of(data, **options)
            self.dataset = _dataset_of(self._adapter, class_weight)
        self.steps_of_epoch = steps
        if not IS_KERAS_3 and steps is None:
            self.steps_of_epoch = self._adapter.get_size()

    @property
    def goes_on(self) -> bool:
        """Whether an epoch begins where the last one ended."""
        if IS_KERAS_3:
            return self.steps_of_epoch is not None
        return not self._adapter.should_recreate_iterator()

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; None if that is not known."""
        known = self._adapter.num_batches if IS_KERAS_3 else self._adapter.get_size()
        if known is None and int(self.dataset.cardinality()) >= 0:
            known = int(self.dataset.cardinality())
        return known

    def begin_epoch(self) -> None:
        """Tells the data that an epoch begins."""
        # Keras 3 before 3.4 and Keras 2 tell them of ends alone.
        getattr(self._adapter, "on_epoch_begin", lambda: None)()

    def end_epoch(self) -> None:
        """Tells the data that an epoch is over; ends what reads ahead."""
        self._adapter.on_epoch_end()


def _adapter_of(
    data: tuple[Any, Any, Any],
    batch_size: int | None,
    shuffle: Any,
    class_weight: Mapping[int, float] | None,
    steps: int | None,
) -> Any:
    """Keras' own adapter."""
    x, y, sample_weight = data
    is_dataset = isinstance(x, tf.data.Dataset)
    if IS_KERAS_3:
        return get_data_adapter(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps,
            shuffle=shuffle and not is_dataset,
            class_weight=class_weight,
        )
    return _keras_2.select_data_adapter(x, y)(
        x,
        y,
        batch_size=batch_size,
        # That of a dataset looks for its end, if it is told of no steps, which it
        # cannot in a tf.function.
        steps=1 if is_dataset else steps,
        epochs=None,
        sample_weights=sample_weight,
        shuffle=shuffle,
    )


def _dataset_of(adapter: Any, class_weight: Mapping[int, float] | None) -> Any:
    if IS_KERAS_3:
        return adapter.get_tf_dataset()
    dataset = adapter.get_dataset()
    if class_weight:
        dataset = dataset.map(_keras_2._make_class_weight_map_fn(class_weight))
    return dataset


def _are_arrays(data: tuple[Any, Any, Any]) -> bool:
    """Whether data is nothing but dense arrays and tensors of numbers."""
    return all(
        leaf is None
        or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf")
        or isinstance(leaf, tf.Tensor)
        for leaf in tf.nest.flatten(data)
    )


def _as_tensor(array: Any) -> tf.Tensor:
    """A tensor, of the dtype that Keras gives an array of NumPy."""
    is_float = isinstance(array, np.ndarray) and array.dtype.kind == "f"
    return tf.convert_to_tensor(array, tf.keras.backend.floatx() if is_float else None)


# What makes the datasets of arrays: a function for each of the last sorts of arrays,
# behind what it is for, and with the adapter that was made when it was traced.
_of_sorts: collections.deque[tuple[Any, Callable[..., Any], list[Any]]] = (
    collections.deque(maxlen=16)
)


def _of_arrays(data: tuple[Any, Any, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """The adapter of arrays, and their dataset.

    Keras' adapter traces functions for each dataset. To trace a function in the
    coordinator of a cluster, and to forget one, waits for every task, one after the
    other, and a task that is busy or hangs keeps the whole process. So the functions
    are traced into another one, of which the arrays are arguments. It is kept for
    arrays of the same shapes.
    """
    leaves = tf.nest.flatten(data)
    arrays = [_as_tensor(leaf) for leaf in leaves if leaf is not None]
    specs = iter([tf.TensorSpec(array.shape, array.dtype) for array in arrays])
    sort = tf.nest.map_structure(lambda x: None if x is None else next(specs), data)
    key = (sort, options)
    for known, function, adapters in _of_sorts:
        if known == key:
            return adapters[0], function(arrays)
    adapters: list[Any] = []

    def make(arrays: list[tf.Tensor]) -> Any:
        rest = iter(arrays)
        tensors = tf.nest.map_structure(
            lambda spec: None if spec is None else next(rest), sort
        )
        adapters.append(_adapter_of(tensors, **options))
        return _dataset_of(adapters[-1], None)

    function = tf.function(make, autograph=False)
    dataset = function(arrays)
    _of_sorts.append((key, function, adapters))
    return adapters[0], dataset


def without_optionals(batch: Any) -> Any:
    """Makes None of what stands for it in datasets of Keras 3's adapters."""
    return tf.nest.map_structure(
        lambda x: None if isinstance(x, tf.experimental.Optional) else x, batch
    )
