"""Datasets of which each worker gets its own, by its number."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Private: which worker runs what is called here is known in functions alone, by
# `experimental_get_current_worker_index`, and there as a tensor.
from tensorflow.python.distribute.coordinator import (  # pyright: ignore
    coordinator_context,
)


def of_each_worker(
    coordinator: Any, make: Callable[[int], tf.data.Dataset], num_workers: int
) -> Any:
    """Makes a dataset on each worker, and anew on one that comes back.

    Args:
        coordinator: the ClusterCoordinator.
        make: returns the dataset of a worker's number; it is traced once for each.
        num_workers: how many there are.

    Returns:
        What `ClusterCoordinator.create_per_worker_dataset` returns.

    Raises:
        ValueError: the workers' batches differ in shape or dtype.
    """
    functions = [
        # As Python, which it is under other strategies, that call it eagerly.
        tf.function(functools.partial(make, number), autograph=False)
        for number in range(num_workers)
    ]
    functions = [function.get_concrete_function() for function in functions]
    specs = [function.structured_outputs.element_spec for function in functions]
    for number, spec in enumerate(specs):
        if spec != specs[0]:
            raise ValueError(
                "The datasets of all workers must have batches of the same shapes and "
                f"dtypes. Received: {spec} of worker {number}, after {specs[0]} of "
                "worker 0"
            )
    dataset = coordinator.create_per_worker_dataset(functions[0])
    # Private: it knows of one function for all workers.
    dataset._dataset_fn = _FunctionOfWorker(functions)
    return dataset


class _FunctionOfWorker:
    """Stands for one function where it is called on each worker."""

    def __init__(self, functions: list[Any]):
        self._functions = functions
        self.structured_outputs = functions[0].structured_outputs

    def __call__(self) -> Any:
        context = coordinator_context.get_current_dispatch_context()
        return self._functions[context.worker_index]()
