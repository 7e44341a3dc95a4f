"""The batches of fit, evaluate and predict, from what their caller gives."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.fit.data import (
    Batches,
    SentBatches,
    WorkersBatches,
    dataset_of_arrays,
    with_class_weights,
)

__all__ = ["evaluation_batches", "input_arrays", "training_batches"]


def training_batches(
    coordinator: Any,
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    shuffle: bool,
    class_weight: Mapping[int, float] | None,
    steps_per_epoch: int | None,
) -> tuple[Batches, tf.data.Dataset]:
    """The batches to train on, and the same as a dataset of the coordinator's."""
    if steps_per_epoch is not None and steps_per_epoch < 1:
        raise ValueError(
            f"steps_per_epoch must be at least 1. "
            f"Received: steps_per_epoch={steps_per_epoch}"
        )

    def weighed(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return with_class_weights(dataset, class_weight) if class_weight else dataset

    if not has_batches(x):
        arrays = input_arrays(x, y, sample_weight)
        repeat = steps_per_epoch is not None
        dataset = weighed(dataset_of_arrays(arrays, batch_size, shuffle, repeat))
        return SentBatches(dataset, steps_per_epoch), dataset
    refuse_arrays_beside(y, sample_weight)
    if isinstance(x, tf.data.Dataset):
        dataset = weighed(x)
        if steps_per_epoch is None:
            if int(x.cardinality()) == int(tf.data.INFINITE_CARDINALITY):
                raise ValueError(
                    "A dataset without end needs steps_per_epoch. "
                    "Received: steps_per_epoch=None"
                )
            return SentBatches(dataset, None), dataset
        repeated = dataset.repeat()
        return WorkersBatches(repeated, steps_per_epoch, coordinator), dataset
    if steps_per_epoch is None:
        raise ValueError(
            "A function that makes datasets needs steps_per_epoch. "
            "Received: steps_per_epoch=None"
        )

    def make() -> tf.data.Dataset:
        return weighed(made_by(x))

    dataset = make()
    batches = WorkersBatches(lambda: make().repeat(), steps_per_epoch, coordinator)
    return batches, dataset


def evaluation_batches(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None
) -> SentBatches:
    """The batches to evaluate on."""
    if has_batches(x):
        refuse_arrays_beside(y, sample_weight)
        dataset = x if isinstance(x, tf.data.Dataset) else made_by(x)
    else:
        dataset = dataset_of_arrays(input_arrays(x, y, sample_weight), batch_size)
    if steps is not None:
        dataset = dataset.take(steps)
    elif int(dataset.cardinality()) == int(tf.data.INFINITE_CARDINALITY):
        raise ValueError(
            "A dataset without end needs validation_steps (fit) or steps (evaluate). "
            "Received: None"
        )
    return SentBatches(dataset, None)


def has_batches(x: Any) -> bool:
    """Whether `x` is made of batches, and not of arrays."""
    return isinstance(x, tf.data.Dataset) or callable(x)


def made_by(dataset_fn: Callable[[Any], tf.data.Dataset]) -> tf.data.Dataset:
    """Calls a dataset function with what it gets under this strategy everywhere."""
    dataset = dataset_fn(tf.distribute.InputContext())
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            "A function given for x must return a tf.data.Dataset. "
            f"Received: {type(dataset).__name__}"
        )
    return dataset


def input_arrays(x: Any, y: Any, sample_weight: Any) -> tuple[Any, ...]:
    """The arrays that are there, as batches hold them."""
    leaves = tf.nest.flatten(x)
    if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
        raise ValueError(
            "x must be a tf.data.Dataset, a function that returns one, or arrays. "
            f"Received: x={x!r}"
        )
    if y is None and sample_weight is not None:
        raise ValueError("sample_weight needs targets. Received: y=None")
    arrays = tuple(part for part in (x, y, sample_weight) if part is not None)
    return with_tuples(arrays)


def with_tuples(structure: Any) -> Any:
    """Makes tuples of lists, which tf.data would take for tensors."""
    if isinstance(structure, (list, tuple)):
        return tuple(map(with_tuples, structure))
    if isinstance(structure, dict):
        return {name: with_tuples(part) for name, part in structure.items()}
    return structure


def refuse_arrays_beside(y: Any, sample_weight: Any) -> None:
    """Raises for what is given beside batches, which hold it already."""
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"{name} must be part of the dataset's batches. "
                f"Received: {name} of type {type(value).__name__}"
            )
