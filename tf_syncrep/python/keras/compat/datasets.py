"""Datasets of workers, each made where its number is known."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Private: it tells the worker's number outside a tf.function, too. The public
# `experimental_get_current_worker_index` works only inside one. And only private names
# tell how far a worker is with a value without waiting for it.
from tensorflow.python.distribute.coordinator import coordinator_context, remote_value

from tf_syncrep.python.keras.compat.closures import worker_index


def dataset_of_workers(
    coordinator: Any,
    functions: Sequence[Any],
    dataset: tf.data.Dataset,
    call: Callable[[Any], tf.data.Dataset],
) -> Any:
    """Makes a dataset on each worker, by a separate function for each worker."""
    datasets = coordinator.create_per_worker_dataset(functions[0])
    # Private: TensorFlow has only one function for all workers. It calls this object
    # while the worker is known; the outputs give the specs.
    datasets._dataset_fn = _FunctionOfWorkers(functions, dataset, call)
    return datasets


def is_made(iterator: Any) -> bool:
    """Returns whether each worker has its part of an iterator of `dataset_of_workers`.

    A worker counts that cannot make it, because it failed or is lost, but not one that
    does not answer.
    """
    not_ready = remote_value.RemoteValueStatus.NOT_READY
    return all(part._status is not not_ready for part in iterator._values)


def as_worker(worker: int) -> Any:
    """Within this context, `experimental_get_current_worker_index` is this number."""
    return coordinator_context.with_dispatch_context(
        types.SimpleNamespace(worker_index=worker)
    )


class _FunctionOfWorkers:
    """Calls the function of the worker for which it is called."""

    def __init__(
        self,
        functions: Sequence[Any],
        dataset: tf.data.Dataset,
        call: Callable[[Any], tf.data.Dataset],
    ):
        self._functions = functions
        self._call = call
        self.structured_outputs = dataset

    def __call__(self) -> tf.data.Dataset:
        return self._call(self._functions[worker_index()])
