"""Keras' own data adapters, which turn `x` of `Model.fit` into a tf.data.Dataset.

Private, since only `Model.fit` uses them: `get_data_adapter` in Keras 3 (checked with
Keras 3.10.0 to 3.16.0.dev), `select_data_adapter` in Keras 2 (2.15.0, tf_keras 2.21.0).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

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

__all__ = [
    "Adapter",
    "dataset_of",
    "is_seeded",
    "stock_adapter",
    "train_validation_split",
]


class Adapter:
    """A data adapter that Keras chose, with what its loops ask of one.

    `steps_of_epoch`: after how many batches an epoch ends; None for the end of
    `dataset`.
    """

    def __init__(self, stock: Any, dataset: Any, steps: int | None):
        """Wraps what `stock_adapter` and `dataset_of` made of some data.

        `steps`: how many batches an epoch has, if the caller of `Model.fit` said it.
        """
        self._adapter = stock
        self.dataset = dataset
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


def stock_adapter(
    data: tuple[Any, Any, Any],
    batch_size: int | None,
    shuffle: Any,
    class_weight: Mapping[int, float] | None,
    steps: int | None,
) -> Any:
    """Makes Keras' own adapter; the arguments are those of `Model.fit`."""
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


def dataset_of(adapter: Any, class_weight: Mapping[int, float] | None) -> Any:
    """Makes the dataset of Keras' own adapter."""
    if IS_KERAS_3:
        shuffle = "_tf_shuffle"
        if hasattr(adapter, shuffle):
            # Private: Keras 3.16 shuffles arrays with the number of the epoch as the
            # seed, and takes that once, when it traces: each epoch would have the same
            # order, and so would each training. Keras before used this function.
            setattr(adapter, shuffle, tf.random.shuffle)
        return adapter.get_tf_dataset()
    dataset = adapter.get_dataset()
    if class_weight:
        dataset = dataset.map(_keras_2._make_class_weight_map_fn(class_weight))
    return dataset


def is_seeded() -> bool:
    """Returns whether a global seed is set, without using it up."""
    return context.global_seed() is not None
