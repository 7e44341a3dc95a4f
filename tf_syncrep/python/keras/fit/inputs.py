"""What `fit`, `evaluate` and `predict` take for `x`, made into batches."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import cluster
from tf_syncrep.python.keras.compat import worker_datasets
from tf_syncrep.python.keras.fit.data import (
    Batches,
    SentBatches,
    WorkersBatches,
    dataset_of_arrays,
    with_class_weights,
)


def training_batches(
    coordinator: Any,
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    shuffle: bool,
    class_weight: Mapping[int, float] | None,
    steps_per_epoch: int | None,
) -> tuple[Batches, Callable[[], Any]]:
    """The batches to train on, and what returns one of them for the coordinator."""
    if steps_per_epoch is not None and steps_per_epoch < 1:
        raise ValueError(
            f"steps_per_epoch must be at least 1. "
            f"Received: steps_per_epoch={steps_per_epoch}"
        )

    def weighed(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return with_class_weights(dataset, class_weight) if class_weight else dataset

    if not _has_batches(x):
        arrays = arrays_of(x, y, sample_weight)
        repeat = steps_per_epoch is not None
        dataset = weighed(dataset_of_arrays(arrays, batch_size, shuffle, repeat))
        batches = SentBatches(dataset, steps_per_epoch)
        return batches, batches.first
    _refuse_arrays_beside(y, sample_weight)
    if isinstance(x, tf.data.Dataset):
        dataset = weighed(x)
        if steps_per_epoch is None:
            if int(x.cardinality()) == int(tf.data.INFINITE_CARDINALITY):
                raise ValueError(
                    "A dataset without end needs steps_per_epoch. "
                    "Received: steps_per_epoch=None"
                )
            batches = SentBatches(dataset, None)
            return batches, batches.first
        per_worker = coordinator.create_per_worker_dataset(dataset.repeat())
        first = SentBatches(dataset, None).first
        return WorkersBatches(per_worker, steps_per_epoch), first
    if steps_per_epoch is None:
        raise ValueError(
            "A function that makes datasets needs steps_per_epoch. "
            "Received: steps_per_epoch=None"
        )

    num_workers = cluster.num_workers()

    def make(number: int) -> tf.data.Dataset:
        return weighed(_made_by(x, tf.distribute.InputContext(num_workers, number)))

    def of_workers(change: Callable[[tf.data.Dataset], tf.data.Dataset]) -> Any:
        return worker_datasets.of_each_worker(
            coordinator, lambda number: change(make(number)), num_workers
        )

    def first() -> Any:
        # Of a worker, as it alone may be where the data is.
        iterator = iter(of_workers(lambda dataset: dataset.take(1)))
        take = tf.function(lambda iterator: next(iterator))
        return coordinator.schedule(take, args=(iterator,)).fetch()

    return WorkersBatches(of_workers(lambda x: x.repeat()), steps_per_epoch), first


def evaluation_batches(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None
) -> SentBatches:
    """The batches to evaluate on."""
    if _has_batches(x):
        _refuse_arrays_beside(y, sample_weight)
        dataset = (
            x
            if isinstance(x, tf.data.Dataset)
            else _made_by(x, tf.distribute.InputContext())
        )
    else:
        dataset = dataset_of_arrays(arrays_of(x, y, sample_weight), batch_size)
    if steps is not None:
        dataset = dataset.take(steps)
    elif int(dataset.cardinality()) == int(tf.data.INFINITE_CARDINALITY):
        raise ValueError(
            "A dataset without end needs validation_steps (fit) or steps (evaluate). "
            "Received: None"
        )
    return SentBatches(dataset, None)


def _has_batches(x: Any) -> bool:
    """Whether `x` is made of batches, and not of arrays."""
    return isinstance(x, tf.data.Dataset) or callable(x)


def _made_by(
    dataset_fn: Callable[[Any], tf.data.Dataset], context: tf.distribute.InputContext
) -> tf.data.Dataset:
    """Calls a dataset function; checks what it returns."""
    dataset = dataset_fn(context)
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            "A function given for x must return a tf.data.Dataset. "
            f"Received: {type(dataset).__name__}"
        )
    return dataset


def arrays_of(x: Any, y: Any, sample_weight: Any) -> tuple[Any, ...]:
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
    return _with_tuples(arrays)


def _with_tuples(structure: Any) -> Any:
    """Makes tuples of lists, which tf.data would take for tensors."""
    if isinstance(structure, (list, tuple)):
        return tuple(map(_with_tuples, structure))
    if isinstance(structure, dict):
        return {name: _with_tuples(part) for name, part in structure.items()}
    return structure


def _refuse_arrays_beside(y: Any, sample_weight: Any) -> None:
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"{name} must be part of the dataset's batches. "
                f"Received: {name} of type {type(value).__name__}"
            )
