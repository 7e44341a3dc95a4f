"""Whether workers that have the same dataset read the same batches at the same time."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

# Such ops make workers read in different orders, or different parts; a Python generator
# may do so as well.
_SHUFFLES = ("Shuffle", "Random")
_PARTS_OR_SHUFFLES = (*_SHUFFLES, "Shard", "PyFunc", "Sampl")


def differs_between_workers(dataset: tf.data.Dataset) -> bool:
    """Returns whether copies of a dataset may be read in different orders, or in parts.

    It looks at the names of the operations in the dataset. If these are unknown, it
    returns True.
    """
    return _has(dataset, _PARTS_OR_SHUFFLES)


def is_shuffled(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset shuffles, as far as the names of its ops tell."""
    return _has(dataset, _SHUFFLES)


def _has(dataset: tf.data.Dataset, names: Sequence[str]) -> bool:
    """Returns whether an op of a dataset has one of these names in its own."""
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,  # state outside the graph does not matter here
            strip_device_assignment=True,
        )
    except tf.errors.OpError:
        return True
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    return any(name in operation for operation in _operations(graph) for name in names)


def _operations(graph: Any) -> Iterator[str]:
    for node in graph.node:
        yield node.op
    for function in graph.library.function:
        for node in function.node_def:
            yield node.op
