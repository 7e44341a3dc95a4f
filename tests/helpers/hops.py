"""How often the tasks of a cluster wait for one another in a function: its hops.

A function that names devices of other tasks is cut into parts, one for each of them,
which run side by side and send one another what they need. A hop is one such message:
from where a function is called to another task, between two of those, or back. Only
hops that wait for one another matter for the latency. They are counted in the graph:
two hops, there and back, are a round trip.
"""

from __future__ import annotations

import dataclasses
import graphlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

_HOME = ""
_BRANCHES = ("then_branch", "else_branch")


@dataclasses.dataclass(frozen=True)
class _Value:
    """The task that has the output of an operation, and the hops before it.

    The handle of a resource is known from the beginning, and decides where its users
    run.
    """

    task: str
    hops: int
    is_handle: bool = False

    def at(self, task: str) -> int:
        """Returns after how many hops the value is known to a task."""
        return self.hops + (task != self.task and not self.is_handle)


def count(function: Any) -> int:
    """Counts the hops of a call that wait for one another, until the call has ended."""
    graph, values = _follow_all(function)
    del graph
    return max(value.at(_HOME) for value in values.values())


def messages(function: Any) -> int:
    """Counts all messages of a call, whether they wait for one another or not.

    A value is sent once to each other task that uses it.
    """
    graph, values = _follow_all(function)
    sent = set()
    for node in graph.node:
        for name in node.input:
            value = values[name.removeprefix("^").partition(":")[0]]
            if values[node.name].task != value.task and not value.is_handle:
                sent.add((name, values[node.name].task))
    return len(sent)


def _follow_all(function):
    """Returns the graph of a function, and the value of each of its nodes."""
    graph = function.graph.as_graph_def()
    functions = {body.signature.name: body for body in graph.library.function}
    captured = function.captured_inputs
    inside = function.inputs[len(function.inputs) - len(captured) :]
    arguments = {
        placeholder.op.name: _Value(
            _task(outer.device), 0, placeholder.dtype == tf.resource
        )
        for outer, placeholder in zip(captured, inside, strict=True)
    }
    return graph, _walk(graph.node, arguments, functions, 0)


def _walk(
    nodes: Iterable[Any],
    arguments: Mapping[str, _Value],
    functions: Mapping[str, Any],
    begin: int,
) -> dict[str, _Value]:
    """Returns the value of each node of a graph that begins after some hops."""
    by_name = {node.name: node for node in nodes if node.name not in arguments}
    inputs = {
        name: [x.removeprefix("^").partition(":")[0] for x in node.input]
        for name, node in by_name.items()
    }
    values = dict(arguments)
    for name in graphlib.TopologicalSorter(inputs).static_order():
        if name in by_name:
            own = [values[x] for x in inputs[name]]
            values[name] = _follow(by_name[name], own, functions, begin)
    return values


def _follow(
    node: Any, inputs: list[_Value], functions: Mapping[str, Any], begin: int
) -> _Value:
    keys = [key for key in ("f", *_BRANCHES) if key in node.attr]
    called = [functions[node.attr[key].func.name] for key in keys]
    if not called:
        handles = [value.task for value in inputs if value.is_handle]
        task = _task(node.device) or next(iter(handles), _HOME)
        hops = max([begin + (task != _HOME), *(value.at(task) for value in inputs)])
        return _Value(task, hops, bool(handles) and node.op == "Identity")
    # A call is replaced by the function's graph. That begins when its control inputs
    # are there, and a branch also waits for its condition.
    data = [v for v, x in zip(inputs, node.input, strict=True) if not x.startswith("^")]
    waited_for = inputs[len(data) :]
    if node.op in ("If", "StatelessIf"):
        waited_for = [*waited_for, data.pop(0)]
    begin = max([begin, *(value.at(_HOME) for value in waited_for)])
    ends = [begin]
    for body in called:
        names = [argument.name for argument in body.signature.input_arg]
        arguments = dict(zip(names, data, strict=True))
        values = _walk(body.node_def, arguments, functions, begin)
        ends += [value.at(_HOME) for value in values.values()]
    return _Value(_HOME, max(ends))


def _task(device: str) -> str:
    """Returns the parameter server of a device; "" for all other devices."""
    found = re.search(r"/job:(ps)/(?:replica:\d+/)?task:(\d+)", device)
    return "".join(found.groups()) if found else _HOME
