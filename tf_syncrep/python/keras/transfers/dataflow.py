"""The order of the ops of a graph, and the task that each of them runs on."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat import graph_edges

# The device that stands in a function for the worker that runs it.
WORKER = "/device:CPU:0"

# These call functions, whose ops are placed one by one. What such an op takes from its
# inputs is where they are made, so their place must not change.
_CALLS_FUNCTIONS = frozenset(
    {
        "Case",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
    }
)


class Dataflow:
    """The dependencies between some ops of a graph.

    Ops are numbered in the order in which they were built. After a function is traced,
    TensorFlow adds control dependencies, so that ops which use the same resource run in
    this order; this class anticipates them. More nodes can be added, for ops that are
    to be built.

    `levels`: the length of the longest chain of messages before each op. If one op has
    to come before another, its level is not higher.
    """

    def __init__(self, graph: Any, ops: Sequence[tf.Operation]):
        """Finds the dependencies of ops, given in the order in which they were built.

        Raises graphlib.CycleError: the graph has a loop.
        """
        self._numbers = {op: number for number, op in enumerate(ops)}
        self.tasks = list(map(Tasks(graph), ops))
        before = [self._inputs(op) for op in ops]
        for earlier, later in self._in_order_of_program(ops):
            before[later].add(earlier)
        self.levels = [0] * len(ops)
        self._after: list[set[int]] = [set() for _ in ops]
        order = graphlib.TopologicalSorter(dict(enumerate(before))).static_order()
        for later in order:
            for earlier in before[later]:
                self._after[earlier].add(later)
                hops = self.tasks[earlier] != self.tasks[later]
                level = self.levels[earlier] + hops
                self.levels[later] = max(self.levels[later], level)

    def number(self, op: tf.Operation) -> int | None:
        """Returns the number of an op; None for an op that is not in the dataflow."""
        return self._numbers.get(op)

    def add_node(self, before: Iterable[int], after: Iterable[int]) -> int:
        """Adds a node between others, and returns its number."""
        self._after.append(set(after))
        node = len(self._after) - 1
        self.add_edges(before, [node])
        return node

    def add_edges(self, before: Iterable[int], after: Iterable[int]) -> None:
        """Makes some nodes come after others."""
        after = list(after)
        for node in before:
            self._after[node].update(after)

    def comes_before(self, sources: Iterable[int], targets: Iterable[int]) -> bool:
        """Returns whether a target is one of the sources, or comes after one."""
        targets = set(targets)
        found = [*sources]
        seen = {*found}
        for node in found:
            if node in targets:
                return True
            new = self._after[node] - seen
            seen |= new
            found += new
        return False

    def _inputs(self, op: tf.Operation) -> set[int]:
        ops = [*(x.op for x in op.inputs), *op.control_inputs]
        return {self._numbers[x] for x in ops if x in self._numbers}

    def _in_order_of_program(self, ops) -> Iterable[tuple[int, int]]:
        """Yields pairs of ops, of which the second has to come after the first."""
        writes: dict[Any, int] = {}
        reads: dict[Any, list[int]] = {}
        for number, op in enumerate(ops):
            keys = {resource_of(x) for x in op.inputs if x.dtype == tf.resource}
            if not keys and graph_edges.keeps_its_place(op):
                keys = {None}
            is_read = graph_edges.only_reads(op)
            for key in keys:
                if key in writes:
                    yield writes[key], number
                if is_read:
                    reads.setdefault(key, []).append(number)
                else:
                    for earlier in reads.pop(key, ()):
                        yield earlier, number
                    writes[key] = number


def resource_of(handle: tf.Tensor) -> tuple[tf.Operation, int]:
    """Returns the op and output that a handle comes from, one for all its handles."""
    while handle.op.type == "Identity":
        handle = handle.op.inputs[0]
    return handle.op, handle.value_index


class Tasks:
    """The tasks of the ops of a graph: parameter servers, and the worker.

    A task is represented by its first CPU. If TensorFlow places an op elsewhere, for a
    reason that this class does not know, there are more messages than necessary, but
    the results are the same.
    """

    def __init__(self, graph: Any):
        self._devices = graph_edges.devices_of_captures(graph)
        self._parsed: dict[str, str] = {}
        self._of_ops: dict[tf.Operation, str] = {}

    def __call__(self, op: tf.Operation) -> str:
        """Returns the task of an op."""
        if op not in self._of_ops:
            task = self._parse(op.device)
            # An op runs where the resource is that it uses.
            handles = (
                x
                for x in op.inputs
                if x.dtype == tf.resource and op.type not in _CALLS_FUNCTIONS
            )
            while task == WORKER and (handle := next(handles, None)) is not None:
                task = self.of_resource(handle)
            self._of_ops[op] = task
        return self._of_ops[op]

    def of_resource(self, handle: tf.Tensor) -> str:
        """Returns the task that a resource is on."""
        device = self._devices.get((handle.op, handle.value_index))
        return self(handle.op) if device is None else self._parse(device)

    def _parse(self, device: str) -> str:
        """Returns the task of a device; the worker, unless the device is a server's."""
        if device not in self._parsed:
            found = re.search(r"/job:ps/(?:replica:(\d+)/)?task:(\d+)", device)
            self._parsed[device] = (
                f"/job:ps/replica:{found[1] or 0}/task:{found[2]}/device:CPU:0"
                if found
                else WORKER
            )
        return self._parsed[device]
