"""Makes the batches of fit, evaluate and predict from what their caller gives."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.data.work_queue import WorkQueue
from tf_syncrep.python.keras.cluster import num_tasks
from tf_syncrep.python.keras.compat.tracing import converted
from tf_syncrep.python.keras.fit import checks
from tf_syncrep.python.keras.fit.adapters import adapter_of
from tf_syncrep.python.keras.fit.batches import (
    NO_BATCHES,
    Batches,
    SentBatches,
    WorkersBatches,
    WorkersPasses,
)
from tf_syncrep.python.keras.fit.worker_datasets import (
    WorkersDatasets,
    copied,
    differs_between_workers,
    endless,
    in_chunks,
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
    chunk_size: int,
) -> tuple[Batches, Callable[[], Any]]:
    """Returns the batches to train on, and a function that reads the first one here."""

    def weighed(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return adapter_of(dataset, y, sample_weight, class_weight=class_weight).dataset

    dataset_fn = None
    if isinstance(x, tf.data.Dataset) and steps_per_epoch is not None:
        refuse_made_before_the_strategy(x, "x")
        refuse_empty(int(x.cardinality()), "x")
        _say_that_all_read_all(x)
        dataset_fn = copied(x)
    elif callable(x):
        # As TensorFlow traces it in `create_per_worker_dataset`.
        dataset_fn = converted(x)
    if dataset_fn is not None:

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return weighed(made_by(dataset_fn, context))

        def read(dataset: tf.data.Dataset, worker: int, epoch: tf.Tensor) -> Any:
            if steps_per_epoch is None:
                return in_chunks(dataset, chunk_size, epoch)
            return endless(dataset, f"the dataset of worker {worker}", epoch)

        datasets = WorkersDatasets(coordinator, num_tasks("worker"), make, read)

        def first() -> Any:
            return first_batch(datasets.batches_here())

        if steps_per_epoch is None:
            if not datasets.have_ends():
                raise ValueError(
                    "A function that makes datasets without end needs steps_per_epoch. "
                    "Received: steps_per_epoch=None"
                )
            return WorkersPasses(datasets), first
        _say_that_queues_end(datasets.queues, steps_per_epoch)
        return WorkersBatches(datasets, steps_per_epoch), first

    adapter = adapter_of(
        read_ahead(x),
        y,
        sample_weight,
        batch_size=batch_size,
        shuffle=shuffle,
        class_weight=class_weight,
        steps=steps_per_epoch,
    )
    refuse_empty(adapter.num_batches, "x")
    if steps_per_epoch is None:
        refuse_endless(adapter.dataset, "x", "steps_per_epoch")
    batches = SentBatches(adapter, adapter.goes_on)
    return batches, batches.first


def evaluation_batches(
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    steps: int | None,
    names: tuple[str, str] = ("x", "steps"),
) -> SentBatches:
    """Returns batches for evaluation; errors call `x` and `steps` by `names`."""
    if callable(x):
        # The function is told that there is one pipeline, which reads all data.
        x = made_by(x, tf.distribute.InputContext())
    adapter = adapter_of(
        read_ahead(x, names[0]), y, sample_weight, batch_size=batch_size, steps=steps
    )
    refuse_empty(adapter.num_batches, names[0])
    if steps is None:
        refuse_endless(adapter.dataset, *names)
    return SentBatches(adapter, goes_on=False, argument=names[0])


def read_ahead(x: Any, argument: str = "x") -> Any:
    """Makes a dataset read ahead, as Keras' adapters do with all other data."""
    if not isinstance(x, tf.data.Dataset):
        return x
    refuse_made_before_the_strategy(x, argument)
    return x.prefetch(tf.data.AUTOTUNE)


def refuse_made_before_the_strategy(dataset: tf.data.Dataset, argument: str) -> None:
    """Raises for a dataset that was made before this process joined its cluster."""
    device = tf.data.experimental.to_variant(dataset).device
    if checks.is_from_before(device):
        raise ValueError(
            f"`{argument}` must be made after the strategy, which connects this "
            "process to the cluster: a dataset from before cannot be read any more. "
            f"Received: a dataset on {device}"
        )


def first_batch(dataset: Any) -> Any:
    """Returns the first batch, to build a model with; raises if there is none."""
    for batch in dataset:
        return batch
    raise ValueError(NO_BATCHES.format("x"))


def refuse_empty(num_batches: int | None, argument: str) -> None:
    """Raises for data that is known to be empty."""
    if num_batches == 0:
        raise ValueError(NO_BATCHES.format(argument))


def refuse_endless(dataset: tf.data.Dataset, argument: str, needed: str) -> None:
    """Raises for a dataset that is known to have no end."""
    if int(dataset.cardinality()) == int(tf.data.INFINITE_CARDINALITY):
        raise ValueError(
            f"`{argument}` has no end, and so `{needed}` must be given. "
            f"Received: {needed}=None"
        )


def made_by(
    dataset_fn: Callable[..., Any], context: tf.distribute.InputContext
) -> tf.data.Dataset:
    """Calls a dataset function."""
    dataset = dataset_fn(context)
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            "A function given for x must return a tf.data.Dataset. "
            f"Received: {type(dataset).__name__}"
        )
    return dataset


def _say_that_all_read_all(dataset: tf.data.Dataset) -> None:
    """Warns once in a process that workers read the same data in the same order."""
    num_workers = num_tasks("worker")
    if num_workers > 1 and not differs_between_workers(dataset):
        logging.log_first_n(
            logging.WARNING,
            "Each of the %d workers reads the whole dataset, in the same order: it "
            "neither shuffles nor is sharded. Let it shuffle, or give a function of a "
            "tf.distribute.InputContext as x, which can shard it.",
            1,
            num_workers,
        )


def _say_that_queues_end(queues: list[WorkQueue], steps_per_epoch: int) -> None:
    """Warns of a queue with an end, since the number of steps does not depend on it.

    A worker at the end waits for items that others have begun to read. If these have no
    steps left in which to go on, nobody does until their leases are over.
    """
    for queue in queues:
        if queue.num_epochs is not None:
            logging.warning(
                "steps_per_epoch=%d does not end where a WorkQueue of num_epochs=%d "
                "does: workers that come to its end wait for what others have begun to "
                "read. Make it with num_epochs=None, or leave steps_per_epoch out.",
                steps_per_epoch,
                queue.num_epochs,
            )
