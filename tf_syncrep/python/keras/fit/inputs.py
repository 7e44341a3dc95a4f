"""The batches of fit, evaluate and predict, from what their caller gives."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras.cluster import num_tasks
from tf_syncrep.python.keras.compat import datasets
from tf_syncrep.python.keras.fit.data import (
    NO_BATCHES,
    Batches,
    SentBatches,
    WorkersBatches,
    dataset_of_arrays,
    datasets_of_workers,
    endless,
    with_class_weights,
)
from tf_syncrep.python.keras.fit.passes import WorkersPasses

__all__ = [
    "evaluation_batches",
    "first_batch",
    "input_arrays",
    "training_batches",
]


def training_batches(
    coordinator: Any,
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    shuffle: bool,
    class_weight: Mapping[int, float] | None,
    steps_per_epoch: int | None,
) -> tuple[Batches, Any]:
    """The batches to train on, and what the coordinator can read some of them from."""
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
        refuse_empty(x)
        dataset = weighed(x)
        if steps_per_epoch is None:
            if int(x.cardinality()) == int(tf.data.INFINITE_CARDINALITY):
                raise ValueError(
                    "A dataset without end needs steps_per_epoch. "
                    "Received: steps_per_epoch=None"
                )
            return SentBatches(dataset, None), dataset
        _say_that_all_read_all(x)
        iterator = iter(coordinator.create_per_worker_dataset(endless(dataset, "x")))
        return WorkersBatches(iterator, steps_per_epoch), dataset

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = weighed(made_by(x, context))
        if steps_per_epoch is None:
            return dataset
        return endless(dataset, f"the dataset of worker {context.input_pipeline_id}")

    datasets_of_all, dataset, queues = datasets_of_workers(
        coordinator, num_tasks("worker"), make
    )
    if steps_per_epoch is not None:
        return WorkersBatches(iter(datasets_of_all), steps_per_epoch), dataset
    if not dataset.has_end():
        raise ValueError(
            "A function that makes datasets without end needs steps_per_epoch. "
            "Received: steps_per_epoch=None"
        )
    return WorkersPasses(datasets_of_all, queues), dataset


def evaluation_batches(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None
) -> SentBatches:
    """The batches to evaluate on."""
    if has_batches(x):
        refuse_arrays_beside(y, sample_weight)
        # One pipeline reads it all, and that is what the function is told.
        context = tf.distribute.InputContext()
        dataset = x if isinstance(x, tf.data.Dataset) else made_by(x, context)
        refuse_empty(dataset)
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


def first_batch(dataset: Any) -> Any:
    """The first batch, to build a model with; raises if there is none."""
    for batch in dataset:
        return batch
    raise ValueError(NO_BATCHES)


def refuse_empty(dataset: tf.data.Dataset) -> None:
    """Raises for a dataset that is known to be empty."""
    if int(dataset.cardinality()) == 0:
        raise ValueError(NO_BATCHES)


def made_by(
    dataset_fn: Callable[[Any], tf.data.Dataset], context: tf.distribute.InputContext
) -> tf.data.Dataset:
    """Calls a dataset function."""
    dataset = dataset_fn(context)
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
    if any(leaf.shape[:1] == (0,) for leaf in leaves):
        raise ValueError("There is nothing in x. Received: arrays of 0 examples")
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


def _say_that_all_read_all(dataset: tf.data.Dataset) -> None:
    """Says once in a process that workers read the same in the same order."""
    num_workers = num_tasks("worker")
    if num_workers > 1 and not datasets.differs_between_workers(dataset):
        logging.log_first_n(
            logging.WARNING,
            "Each of the %d workers reads the whole dataset, in the same order: it "
            "neither shuffles nor is sharded. Let it shuffle, or give a function of a "
            "tf.distribute.InputContext as x, which can shard it.",
            1,
            num_workers,
        )
