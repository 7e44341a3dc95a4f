"""Edges of a graph that is being traced, and the order that its ops will get.

Private, all of it: nothing public changes an existing op, or its place in the order.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Private: no public function says how ops that share a resource will be ordered.
from tensorflow.python.framework import (  # pyright: ignore
    auto_control_deps,
    auto_control_deps_utils,
)


def replace_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Replaces one of an op's inputs by another tensor."""
    op._update_input(index, tensor)


def set_attribute(op: tf.Operation, name: str, value: int | Sequence[int]) -> None:
    """Sets an attribute of an op to a number or to numbers."""
    attribute = tf.compat.v1.AttrValue()
    if isinstance(value, int):
        attribute.i = value
    else:
        attribute.list.i.extend(value)
    op._set_attr(name, attribute)


def add_control_input(op: tf.Operation, before: tf.Operation) -> None:
    """Makes an op run after another one."""
    op._add_control_input(before)


def leave_unordered(graph: Any, op: tf.Operation) -> None:
    """Keeps TensorFlow from ordering an op with others that use its resource."""
    graph.experimental_acd_manager.run_independently(op)


def only_reads(op: tf.Operation) -> bool:
    """Returns whether an op, or what the functions do that it calls, only reads.

    Other reads of its resources may then run beside it.
    """
    reads, writes = auto_control_deps_utils.get_read_write_resource_inputs(op)
    return bool(reads) and not writes


def keeps_its_place(op: tf.Operation) -> bool:
    """Returns whether an op without resources runs in the order of the program."""
    return auto_control_deps.op_is_stateful(op)


def devices_of_captures(graph: Any) -> dict[tuple[tf.Operation, int], str]:
    """Returns the devices of the resources that a function captures."""
    return {
        (inner.op, inner.value_index): _device_outside(outer)
        for outer, inner in getattr(graph, "captures", ())
        if inner.dtype == tf.resource
    }


def _device_outside(tensor: Any) -> str:
    """Finds the device of a resource that functions around this one may capture."""
    while hasattr(tensor, "op"):  # until it is eager
        for outer, inner in getattr(tensor.graph, "captures", ()):
            if inner is tensor:
                tensor = outer
                break
        else:
            break
    return tensor.device


class _Unnoted(set):
    """A set that adds nothing."""

    def add(self, element: Any) -> None:
        del element


def return_results_at_once() -> None:
    """Makes the results of the function that is being traced wait for nothing else.

    The call still ends when all ops have ended on all tasks. But TensorFlow also makes
    each result wait for all ops with effects, of which every other task informs the
    task that has the result, by a message.
    """
    graph = tf.compat.v1.get_default_graph()
    graph.experimental_acd_manager._returned_tensors = _Unnoted()
