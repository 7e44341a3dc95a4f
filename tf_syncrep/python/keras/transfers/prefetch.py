"""Lookups that do not wait for the update of the step before them.

Like any read of a variable, a lookup waits for all earlier writes. So the rows of the
next batch are requested only after gradients were sent and applied. `read_rows_early`
moves a lookup before the last update, but not before the one before that, so that a
step always misses the update of exactly one step.
"""

from __future__ import annotations

import contextlib
import graphlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat import graph_edges
from tf_syncrep.python.keras.transfers.dataflow import Dataflow, resource_of

_LOOKUP = "Syncrep>EmbeddingGather"

_Writes = dict[Any, list[tf.Operation]]


def read_rows_early(graph: Any, steps: Sequence[Sequence[tf.Operation]]) -> None:
    """Moves the lookups of each step, except the first, before the last step's updates.

    It is called while a function is being traced, before TensorFlow orders the ops that
    use a variable. A lookup stays in its place if its ids depend on the last step's
    changes of tables, if it was told to wait for something that does, or if its own
    step changes the table before the lookup.
    """
    writes = [_writes(step) for step in steps]
    for i in range(1, len(steps)):
        lookups = list(_movable(steps[i], writes[i - 1]))
        if not lookups:
            continue
        # A graph with a loop of TensorFlow 1 is left as it is.
        with contextlib.suppress(graphlib.CycleError):
            flow = Dataflow(graph, [*steps[i - 1], *steps[i]])
            changed = [
                number
                for ops in writes[i - 1].values()
                for op in ops
                if (number := flow.number(op)) is not None
            ]
            for lookup in lookups:
                needed = [lookup.inputs[1].op, *lookup.control_inputs]
                numbers = [x for op in needed if (x := flow.number(op)) is not None]
                if not flow.comes_before(changed, numbers):
                    key = resource_of(lookup.inputs[0])
                    earlier = [x[key] for x in writes[: i - 1] if key in x]
                    last = earlier[-1] if earlier else []
                    _place(graph, lookup, last, writes[i - 1][key])


def _writes(ops: Sequence[tf.Operation]) -> _Writes:
    """Returns the ops that may change a resource, for each resource."""
    found: _Writes = {}
    for op in ops:
        if op.type != _LOOKUP and not graph_edges.only_reads(op):
            for key in {resource_of(x) for x in op.inputs if x.dtype == tf.resource}:
                found.setdefault(key, []).append(op)
    return found


def _movable(ops: Sequence[tf.Operation], before: _Writes) -> Iterator[tf.Operation]:
    """Finds lookups in tables that the last step changes and this one only later."""
    own = _writes(ops)
    numbers = {op: number for number, op in enumerate(ops)}
    for op in ops:
        if op.type == _LOOKUP:
            key = resource_of(op.inputs[0])
            is_first = all(numbers[op] < numbers[x] for x in own.get(key, ()))
            if key in before and is_first:
                yield op


def _place(
    graph: Any,
    lookup: tf.Operation,
    after: Sequence[tf.Operation],
    before: Sequence[tf.Operation],
) -> None:
    """Makes a lookup run after some ops and before others, all of them on its task."""
    graph_edges.leave_unordered(graph, lookup)
    for op in after:
        graph_edges.add_control_input(lookup, op)
    for op in before:
        graph_edges.add_control_input(op, lookup)
