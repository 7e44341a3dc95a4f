"""Whether workers that have the same dataset read the same batches at the same time."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Such ops make workers read in different orders, or different parts; a Python generator
# may do so as well.
_PARTS_OR_SHUFFLES = ("Shuffle", "Shard", "Random", "PyFunc", "Sampl")


def differs_between_workers(dataset: tf.data.Dataset) -> bool:
    """Returns whether copies of a dataset may be read in different orders, or in parts.

    It looks at the names of the operations in the dataset. If these are unknown, it
    returns True.
    """
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,  # state outside the graph does not matter here
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
