"""The order of a step's count and its updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat.graph_edges import (
    add_control_input,
    devices_of_captures,
    only_reads,
)


def count_last(counters: Iterable[Any], ops: Sequence[tf.Operation]) -> None:
    """Makes counters of steps count after the step's updates, so after its gradients.

    Otherwise a step that fails may be counted, and those behind it in its execution.
    A count waits for the updates on its own task, which costs no message. If there are
    none, it waits for the values of another one.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    devices = devices_of_captures(graph)
    natives = [compat.native(counter) for counter in counters]
    handles = {graph.capture(x.handle).op for x in natives if hasattr(x, "handle")}
    updates: list[tuple[tf.Operation, set[str]]] = []
    for op in ops:
        resources = [(x.op, x.value_index) for x in op.inputs if x.dtype == tf.resource]
        if not resources or only_reads(op):
            continue
        on = {devices[x] for x in resources if x in devices}
        if resources[0][0] not in handles:
            updates.append((op, on))
        elif op.type == "AssignAddVariableOp" and updates:
            before = [update for update, where in updates if where & on]
            if not before:
                values = [x.op for x in updates[-1][0].inputs if x.dtype != tf.resource]
                before = values[-1:]
            for update in before:
                add_control_input(op, update)
