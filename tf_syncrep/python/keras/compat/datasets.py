"""Datasets of workers, each made where its number is known."""

import types
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Private: it tells the worker's number outside a tf.function, too. The public
# `experimental_get_current_worker_index` works only inside one. And only private names
# tell how far a worker is with a value without waiting for it.
from tensorflow.python.distribute.coordinator import coordinator_context, remote_value


def dataset_of_workers(coordinator: Any, functions: Sequence[Any]) -> Any:
    """Makes a dataset on each worker, by a separate function for each worker.

    Args:
        coordinator: the ClusterCoordinator.
        functions: for each worker a concrete function that returns its dataset. All
            datasets have the same structure.

    Returns:
        A dataset of which `iter` makes arguments for `coordinator.schedule`. If a
        worker comes back, the same function makes its dataset anew.
    """
    datasets = coordinator.create_per_worker_dataset(functions[0])
    # Private: TensorFlow has only one function for all workers. It calls this object
    # while the worker is known; the outputs give the specs.
    datasets._dataset_fn = _FunctionOfWorkers(functions)
    return datasets


def is_made(iterator: Any) -> bool:
    """Returns whether each worker has its part of an iterator of `dataset_of_workers`.

    A worker counts that cannot make it, because it failed or is lost, but not one that
    does not answer.
    """
    not_ready = remote_value.RemoteValueStatus.NOT_READY
    return all(part._status is not not_ready for part in iterator._values)


def dataset_of_worker(function: Any, worker: int) -> tf.data.Dataset:
    """Makes a worker's dataset in this process."""
    # Private: this is the number that `experimental_get_current_worker_index` returns.
    with coordinator_context.with_dispatch_context(
        types.SimpleNamespace(worker_index=worker)
    ):
        return function()


class _FunctionOfWorkers:
    """Calls the function of the worker for which it is called.

    Attributes:
        structured_outputs: the functions' outputs, for their specs.
    """

    def __init__(self, functions: Sequence[Any]):
        self._functions = functions
        self.structured_outputs = functions[0].structured_outputs

    def __call__(self) -> Any:
        context = coordinator_context.get_current_dispatch_context()
        return self._functions[context.worker_index]()
