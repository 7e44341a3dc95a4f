"""Keras' own data adapters, which turn `x` of `Model.fit` into a tf.data.Dataset.

Private, since only `Model.fit` uses them: `get_data_adapter` in Keras 3 (checked with
Keras 3.0.5 to 3.15.1), `select_data_adapter` in Keras 2 (2.15.0, tf_keras 2.21.0).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

if IS_KERAS_3:
    from keras.src.trainers.data_adapters import get_data_adapter

    try:
        from keras.src.trainers.data_adapters.array_slicing import (
            train_validation_split,
        )
    except ImportError:  # before Keras 3.3
        from keras.src.trainers.data_adapters.data_adapter_utils import (
            train_validation_split,
        )
else:
    # It is beside the module of Model, in "keras" or in "tf_keras".
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
        if IS_KERAS_3:
            self._adapter = get_data_adapter(
                x,
                y,
                sample_weight,
                batch_size=batch_size,
                steps_per_epoch=steps,
                shuffle=shuffle and not isinstance(x, tf.data.Dataset),
                class_weight=class_weight,
            )
            self.dataset = self._adapter.get_tf_dataset()
            self.steps_of_epoch = steps
            return
        self._adapter = _keras_2.select_data_adapter(x, y)(
            x,
            y,
            batch_size=batch_size,
            # Without a number of steps the adapter of a dataset looks for its end,
            # which is not possible in a tf.function.
            steps=1 if isinstance(x, tf.data.Dataset) else steps,
            epochs=None,
            sample_weights=sample_weight,
            shuffle=shuffle,
        )
        self.dataset = self._adapter.get_dataset()
        self.steps_of_epoch = self._adapter.get_size() if steps is None else steps
        if class_weight:
            weigh = _keras_2._make_class_weight_map_fn(class_weight)
            self.dataset = self.dataset.map(weigh)

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
        # Keras 2, and Keras 3 before 3.4, tell the adapters only of ends.
        getattr(self._adapter, "on_epoch_begin", lambda: None)()

    def end_epoch(self) -> None:
        """Tells the data that an epoch is over, and ends threads that read ahead."""
        self._adapter.on_epoch_end()


def without_optionals(batch: Any) -> Any:
    """Replaces optionals, which Keras 3's adapters use for None, by None."""
    return tf.nest.map_structure(
        lambda x: None if isinstance(x, tf.experimental.Optional) else x, batch
    )
