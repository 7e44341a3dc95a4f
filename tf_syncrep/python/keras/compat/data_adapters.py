"""Keras' own data adapters, which turn `x` of `Model.fit` into a tf.data.Dataset.

Private, since only `Model.fit` uses them: `get_data_adapter` in Keras 3 (checked with
Keras 3.10.0 to 3.15.1), `select_data_adapter` in Keras 2 (2.15.0, tf_keras 2.21.0).
"""

from __future__ import annotations

import collections
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Private: nothing public tells whether a seed is set without using it up.
from tensorflow.python.eager import context  # pyright: ignore

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

if IS_KERAS_3:
    from keras.src.trainers.data_adapters import get_data_adapter
    from keras.src.trainers.data_adapters.array_slicing import train_validation_split
else:
    # The module is beside that of Model, in "keras" or in "tf_keras".
    _keras_2 = importlib.import_module(
        tf.keras.Model.__module__.rpartition(".")[0] + ".data_adapter"
    )
    train_validation_split = _keras_2.train_validation_split

__all__ = ["Adapter", "train_validation_split", "without_optionals"]


class Adapter:
    """The data adapter that Keras chooses for some data.

    Attributes:
        dataset: the batches of one epoch. In Keras 2 those of arrays have no end.
        steps_of_epoch: after how many batches an epoch ends; None for the end of
            `dataset`.
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
        """Chooses the adapter; the arguments are those of `Model.fit`."""
        options = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "class_weight": class_weight,
            "steps": steps,
        }
        data = (x, y, sample_weight)
        # Functions cannot be kept for other arrays if Keras looks at the values of the
        # classes, or if a seed is part of the function.
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
        """How many batches an epoch has; None if it is not known."""
        known = self._adapter.num_batches if IS_KERAS_3 else self._adapter.get_size()
        if known is None and int(self.dataset.cardinality()) >= 0:
            known = int(self.dataset.cardinality())
        return known

    def begin_epoch(self) -> None:
        """Tells the data that an epoch begins."""
        # Keras 2 tells the adapters only of ends.
        getattr(self._adapter, "on_epoch_begin", lambda: None)()

    def end_epoch(self) -> None:
        """Tells the data that an epoch is over, and ends threads that read ahead."""
        self._adapter.on_epoch_end()


def _adapter_of(
    data: tuple[Any, Any, Any],
    batch_size: int | None,
    shuffle: Any,
    class_weight: Mapping[int, float] | None,
    steps: int | None,
) -> Any:
    """Makes Keras' own adapter."""
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
        # Without a number of steps the adapter of a dataset looks for its end,
        # which is not possible in a tf.function.
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
        adapters.append(_adapter_of(tensors, **options))
        return _dataset_of(adapters[-1], None)

    function = tf.function(make, autograph=False)
    dataset = function(arrays)
    _of_sorts.append((key, function, adapters))
    return adapters[0], dataset


def without_optionals(batch: Any) -> Any:
    """Replaces optionals, which Keras 3's adapters use for None, by None."""
    return tf.nest.map_structure(
        lambda x: None if isinstance(x, tf.experimental.Optional) else x, batch
    )
