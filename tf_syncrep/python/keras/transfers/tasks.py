"""The task of a cluster that each op of a function runs on."""

from __future__ import annotations

import re
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


class Tasks:
    """The tasks of the ops of a graph: parameter servers, and the worker.

    A task is represented by its first CPU. If TensorFlow places an op elsewhere, for a
    reason that this class does not know, there are more messages than necessary, but
    the results are the same.
    """

    def __init__(self, graph: Any):
        """Finds the devices of what the graph captures."""
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
