"""The order of ops in a function, whichever thread builds them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def ops_after(tensor: Any) -> Iterator[None]:
    """All ops that are built inside run after a tensor was computed.

    `tf.control_dependencies` holds for the thread that enters it. `strategy.run` traces
    in another one, into the same graph, whose ops get the dependency at the end here.

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
    with tf.control_dependencies([tensor]):
        yield
    # What a function captures is an argument of it, and is there from the beginning.
    built = [
        op for op in graph.get_operations()[num_before:] if op.type != "Placeholder"
    ]
    inside = {tensor.op, *built}
    for op in built:
        before = [*(source.op for source in op.inputs), *op.control_inputs]
        # All others come after one of these.
        if inside.isdisjoint(before):
            # Private: nothing public adds to the inputs of an op that is there.
            op._add_control_input(tensor.op)
