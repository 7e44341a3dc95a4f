"""Makes ops of a step wait for the step's permit, whichever thread builds them."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat import graph_edges
from tf_syncrep.python.keras.transfers.dataflow import WORKER, Tasks

# If such an op is on the worker, its variable belongs to the worker, like a metric's.
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


def use_resources_after(
    ops: Sequence[tf.Operation],
    before: Sequence[tf.Operation],
    otherwise: tf.Operation,
) -> None:
    """Makes ops that use a resource run after others on the resource's own task.

    A control dependency on an op of another task is a message.
    """
    tasks = Tasks(otherwise.graph)
    of_tasks: dict[str, list[tf.Operation]] = {}
    for op in before:
        for task in _tasks_of_resources(op, tasks):
            of_tasks.setdefault(task, []).append(op)
    for op in ops:
        for task in _tasks_of_resources(op, tasks):
            for earlier in of_tasks.get(task, [otherwise]):
                graph_edges.add_control_input(op, earlier)


def one_of_each_task(gradients: Sequence[Any]) -> list[tf.Operation]:
    """Returns the ops that take gradients from accumulators, one of each task.

    Returns the op that takes the smallest dense gradient, if there is one on the task.
    """
    tasks = Tasks(tf.compat.v1.get_default_graph())
    chosen: dict[str, tf.Operation] = {}
    for gradient in sorted(gradients, key=_size):
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        op = (gradient.values if is_sparse else gradient).op
        for task in _tasks_of_resources(op, tasks):
            chosen.setdefault(task, op)
    return list(chosen.values())


def _size(gradient: Any) -> float:
    if isinstance(gradient, tf.IndexedSlices):
        return math.inf
    size = gradient.shape.num_elements()
    return math.inf if size is None else size


def _tasks_of_resources(op: tf.Operation, tasks: Tasks) -> set[str]:
    return {tasks.of_resource(x) for x in op.inputs if x.dtype == tf.resource}


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
