"""Edges of a graph that is being traced, and the order that it will be given.

All that is private here was checked with TensorFlow 2.15.1 and 2.21.0.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Private: no public function says how ops that share a resource will be ordered.
from tensorflow.python.framework import (  # pyright: ignore
    auto_control_deps,
    auto_control_deps_utils,
)


def replace_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Has an op take a tensor in the place of one of its inputs.

    Private: nothing public changes the inputs of an op that is there.

    Args:
        op: the op.
        index: of the input.
        tensor: of the same graph, dtype and shape.
    """
    op._update_input(index, tensor)


def add_control_input(op: tf.Operation, before: tf.Operation) -> None:
    """Has an op run after another one.

    Private: nothing public adds to the inputs of an op that is there.
    """
    op._add_control_input(before)


def leave_unordered(graph: Any, op: tf.Operation) -> None:
    """Has TensorFlow not order an op with others that use its resource.

    Private: nothing public says so of a single op.

    Args:
        graph: the graph of the function that is being traced.
        op: an op of it.
    """
    graph.experimental_acd_manager.run_independently(op)


def only_reads(op: tf.Operation) -> bool:
    """Whether TensorFlow lets an op and others that only read a resource go at once.

    Of ops that call functions it may be more than what is said here.
    """
    return op.type in auto_control_deps_utils.RESOURCE_READ_OPS


def keeps_its_place(op: tf.Operation) -> bool:
    """Whether an op that uses no resource runs in the order of the program."""
    return auto_control_deps.op_is_stateful(op)


def devices_of_captures(graph: Any) -> dict[tuple[tf.Operation, int], str]:
    """The devices of the resources that a function captures.

    Private: what a function captures has no public name.

    Args:
        graph: the graph of a function, or another one.

    Returns:
        By the ops, and the numbers of their outputs, that stand for them in the graph.
    """
    return {
        (inner.op, inner.value_index): _device_outside(outer)
        for outer, inner in getattr(graph, "captures", ())
        if inner.dtype == tf.resource
    }


def _device_outside(tensor: Any) -> str:
    """The device of a resource that the functions around may capture as well."""
    while hasattr(tensor, "op"):  # It is not an eager one.
        for outer, inner in getattr(tensor.graph, "captures", ()):
            if inner is tensor:
                tensor = outer
                break
        else:
            break
    return tensor.device


@contextlib.contextmanager
def at_the_end_of(graph: Any) -> Iterator[None]:
    """A context in which ops depend on nothing but their inputs, on any device."""
    with graph.as_default(), tf.control_dependencies(None), tf.device(None):
        yield


class _Unnoted(set):
    """A set that takes nothing up."""

    def add(self, element: Any) -> None:
        del element


def return_results_at_once() -> None:
    """Has what is returned by the function that is being traced wait for nothing else.

    The call ends when all ops have ended on all tasks, as ever. But TensorFlow lets
    each result, too, wait for all ops that have effects, of which every other task
    tells the one that has the result, by a message.

    Private: nothing public has a function do without.
    """
    graph = tf.compat.v1.get_default_graph()
    graph.experimental_acd_manager._returned_tensors = _Unnoted()
