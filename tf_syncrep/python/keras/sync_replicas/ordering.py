"""Makes ops of a step wait for the step's permit, whichever thread builds them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat import graph_edges
from tf_syncrep.python.keras.transfers.tasks import WORKER, Tasks

# If such an op is on the worker, its variable is the worker's own, as those of metrics.
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
    """Makes ops built inside that read or change anything run after a tensor.

    Ops that only compute something on the worker do not wait for a tensor on another
    task, since TensorFlow would send a message for that. Ops on the worker's own
    variables do not wait either.

    `tf.control_dependencies` would apply only to the thread that enters it, and
    `strategy.run` traces in another thread, into the same graph. So the ops get the
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
        # An op with an input that waits comes after the tensor anyway.
        if waiting.isdisjoint(before):
            if not _has_effects(op, tasks):
                continue
            graph_edges.add_control_input(op, tensor.op)
        waiting.add(op)


def _has_effects(op: tf.Operation, tasks: Tasks) -> bool:
    """Returns whether an op reads or changes state that workers share."""
    # Captured tensors are arguments of the function, and available from the beginning.
    if op.type == "Placeholder":
        return False
    if any(x.dtype in (tf.resource, tf.variant) for x in op.inputs):
        return op.type not in _OF_VARIABLES or tasks(op) != WORKER
    # An op without resources, such as an assertion, concerns only the worker if it is
    # there.
    return tasks(op) != WORKER and graph_edges.keeps_its_place(op)
