"""Rows of tables that are read before the step in front of theirs has moved them.

A lookup waits for the update of the step before, as any read of a variable waits for
what was done to it. Then rows of the next batch are asked for only when gradients have
been sent and applied. `read_rows_early` has a lookup come before that update, and after
the one before it, so that a step always misses the update of one step.
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
    """Has the lookups of each step, but the first, come before the last step's updates.

    For `tfs.keras.fit`, while a function is being traced: later TensorFlow will order
    the ops that use a variable. A lookup stays where it is if its ids depend on what
    the step before has done to tables, or if its own step changes the table before.
    """
    writes = [_writes(step) for step in steps]
    for i in range(1, len(steps)):
        lookups = list(_movable(steps[i], writes[i - 1]))
        if not lookups:
            continue
        # A graph with a loop, of TensorFlow 1, stays as it is.
        with contextlib.suppress(graphlib.CycleError):
            flow = Dataflow(graph, [*steps[i - 1], *steps[i]])
            changed = [
                number
                for ops in writes[i - 1].values()
                for op in ops
                if (number := flow.number(op)) is not None
            ]
            for lookup in lookups:
                ids = flow.number(lookup.inputs[1].op)
                if ids is None or not flow.comes_before(changed, [ids]):
                    key = resource_of(lookup.inputs[0])
                    earlier = [x[key] for x in writes[: i - 1] if key in x]
                    last = earlier[-1] if earlier else []
                    _place(graph, lookup, last, writes[i - 1][key])


def _writes(ops: Sequence[tf.Operation]) -> _Writes:
    """What may change a resource, by resource."""
    found: _Writes = {}
    for op in ops:
        if op.type != _LOOKUP and not graph_edges.only_reads(op):
            for key in {resource_of(x) for x in op.inputs if x.dtype == tf.resource}:
                found.setdefault(key, []).append(op)
    return found


def _movable(ops: Sequence[tf.Operation], before: _Writes) -> Iterator[tf.Operation]:
    """Lookups in tables that the step before changes, and this one only afterwards."""
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
    """Has a lookup run after some ops and before others, all of them on its task."""
    graph_edges.leave_unordered(graph, lookup)
    for op in after:
        graph_edges.add_control_input(lookup, op)
    for op in before:
        graph_edges.add_control_input(op, lookup)
