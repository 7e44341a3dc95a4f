"""What in a step waits for the step's permit, whichever thread builds it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat import graph_edges
from tf_syncrep.python.keras.transfers.tasks import WORKER, Tasks

# On the worker they concern variables of its own, as those of metrics.
_OF_VARIABLES = frozenset(
    {
        "AssignAddVariableOp",
        "AssignSubVariableOp",
        "AssignVariableOp",
        "ReadVariableOp",
    }
)


@contextlib.contextmanager
def effects_after(tensor: Any) -> Iterator[None]:
    """What is built inside and reads or changes anything runs after a tensor.

    What the worker merely computes does not wait for what is on another task:
    TensorFlow would send a message for that. Nor does what it does to variables of its
    own.

    `tf.control_dependencies` would hold for the thread that enters it, and
    `strategy.run` traces in another one, into the same graph. So the ops get the
    dependency at the end.

    Args:
        tensor: a tensor of the function that is being traced, or an eager one.

    Yields:
        Nothing.
    """
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    num_before = len(graph.get_operations())
    yield
    tasks = Tasks(graph)
    waiting = {tensor.op}
    for op in graph.get_operations()[num_before:]:
        before = [*(source.op for source in op.inputs), *op.control_inputs]
        # All others come after one of these.
        if waiting.isdisjoint(before):
            if not _has_effects(op, tasks):
                continue
            graph_edges.add_control_input(op, tensor.op)
        waiting.add(op)


def _has_effects(op: tf.Operation, tasks: Tasks) -> bool:
    """Whether an op reads or changes something that the worker shares."""
    # What a function captures is an argument of it, and is there from the beginning.
    if op.type == "Placeholder":
        return False
    if any(x.dtype in (tf.resource, tf.variant) for x in op.inputs):
        return op.type not in _OF_VARIABLES or tasks(op) != WORKER
    # What has none, such as an assertion, is the worker's own affair if it is there.
    return tasks(op) != WORKER and graph_edges.keeps_its_place(op)
