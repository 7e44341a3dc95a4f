"""Datasets of workers, and what datasets do, which only private names tell."""

import types
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

# Private: tells the worker's number outside of a tf.function, too. The public
# `experimental_get_current_worker_index` is only for the inside.
from tensorflow.python.distribute.coordinator import coordinator_context

# What makes workers read in different orders, or different parts; a Python generator
# may do so as well.
_PARTS_OR_SHUFFLES = ("Shuffle", "Shard", "Random", "PyFunc", "Sampl")


def dataset_of_workers(coordinator: Any, functions: Sequence[Any]) -> Any:
    """A dataset on each worker, made by a function of that worker's own.

    Args:
        coordinator: the ClusterCoordinator.
        functions: for each worker a concrete function that returns its dataset; all
            with the same structure.

    Returns:
        What `iter` makes iterators of, arguments for `coordinator.schedule`. That of a
        worker that comes back is made anew by the same function.
    """
    datasets = coordinator.create_per_worker_dataset(functions[0])
    # Private: TensorFlow has only one function for all workers. This one is called with
    # the worker known; its outputs tell the specs.
    datasets._dataset_fn = _FunctionOfWorkers(functions)
    return datasets


def dataset_of_worker(function: Any, worker: int) -> tf.data.Dataset:
    """Makes a worker's dataset in this process."""
    # Private: the number that `experimental_get_current_worker_index` finds.
    with coordinator_context.with_dispatch_context(
        types.SimpleNamespace(worker_index=worker)
    ):
        return function()


class _FunctionOfWorkers:
    """Calls the function of the worker for which it is called.

    Attributes:
        structured_outputs: what the functions return, for its specs.
    """

    def __init__(self, functions: Sequence[Any]):
        self._functions = functions
        self.structured_outputs = functions[0].structured_outputs

    def __call__(self) -> Any:
        context = coordinator_context.get_current_dispatch_context()
        return self._functions[context.worker_index]()


def differs_between_workers(dataset: tf.data.Dataset) -> bool:
    """Whether copies of a dataset may be read in different orders, or in parts.

    Found by the names of the operations in it. True if these cannot be known.
    """
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,  # What is outside the graph does not matter here.
            strip_device_assignment=True,
        )
    except tf.errors.OpError:
        return True
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    return any(
        part in operation
        for operation in _operations(graph)
        for part in _PARTS_OR_SHUFFLES
    )


def _operations(graph: Any) -> Iterator[str]:
    for node in graph.node:
        yield node.op
    for function in graph.library.function:
        for node in function.node_def:
            yield node.op
