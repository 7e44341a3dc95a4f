"""Tensors that go from one task to another in a step, in as few messages as possible.

Each tensor that a task needs from another one costs a call, which takes some tenths of
a millisecond on both, however small the tensor is. A step reads each dense variable,
and sends a gradient for each; constants go from the worker to the servers that use
them. `few_messages` joins the tensors that go from one task to another at the same
time: it builds ops that pack them into one tensor and unpack it, and connects the
receivers to these. Rows of a table, or their gradients, bring the others along. All
results have the same bits as before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import graphlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.sizes import num_bytes
from tf_syncrep.python.keras.compat import graph_edges
from tf_syncrep.python.keras.transfers import packing, rows
from tf_syncrep.python.keras.transfers.dataflow import WORKER, Dataflow

# Packing and unpacking a larger tensor would take about as long as the call it saves.
_LARGEST_BYTES = 256 * 1024
_LARGEST_CONSTANT = 64
_DTYPES = frozenset(
    {
        *(tf.bool, tf.half, tf.bfloat16, tf.float32, tf.float64),
        *(tf.int8, tf.int16, tf.int32, tf.int64),
        *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    }
)

# The graphs of functions in which a step is being traced.
_open: weakref.WeakSet[Any] = weakref.WeakSet()


@contextlib.contextmanager
def few_messages() -> Iterator[None]:
    """Makes a step of a custom loop send few messages to parameter servers.

    Put it around each step in the function that a ClusterCoordinator schedules. Tensors
    that the ops inside send from one task to another at the same time travel as one:
    all small variables of a server, or all small gradients for them. Rows of this
    package's tables, and gradients of rows, bring these along.
    Tensors above 256 KB, and others of unknown shape, travel by themselves. All values
    have the same bits as without it, also gradients that are taken after it, which then
    travel by themselves. `tfs.keras.fit` and `SyncReplicas.step` do this by themselves.
    Inside of another such context, or in eager mode, it does nothing.

    Example:
    ```python
    import tensorflow as tf
    import tf_syncrep as tfs

    weight = tf.Variable([1.0, 2.0])  # On a parameter server, in a strategy's scope.

    @tf.function
    def train_step():
        with tfs.keras.few_messages():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight**2)
            weight.assign_sub(0.25 * tape.gradient(loss, weight))

    train_step()
    print(weight.numpy())  # [0.5 1. ]
    ```

    Yields:
        Nothing.
    """
    with joined_transfers():
        yield


@contextlib.contextmanager
def joined_transfers(lookups_wait: bool = True) -> Iterator[None]:
    """Does the same; rows that lookups find bring others only if `lookups_wait`."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None or graph in _open:
        yield
        return
    num_before = len(graph.get_operations())
    _open.add(graph)
    try:
        yield
    finally:
        _open.discard(graph)
    # A graph with a loop of TensorFlow 1 is left as it is.
    with contextlib.suppress(graphlib.CycleError):
        _Transfers(graph, graph.get_operations()[num_before:], lookups_wait).join()


@dataclasses.dataclass
class _Use:
    """A tensor that goes to a task, and the inputs of ops there that take it."""

    tensor: tf.Tensor
    source: int
    inputs: list[tuple[tf.Operation, int]] = dataclasses.field(default_factory=list)
    consumers: set[int] = dataclasses.field(default_factory=set)


# A tensor's op, and the number of the op's output.
_Key = tuple[tf.Operation, int]


@dataclasses.dataclass
class _Message:
    """The tensors that go from one task to another at the same time.

    `rows`: the key of the tensor with rows that bring the others along, or None.
    """

    origin: str
    target: str
    uses: dict[_Key, _Use]
    rows: _Key | None = None
    node: int = -1

    @property
    def consumers(self) -> set[int]:
        return set().union(*(use.consumers for use in self.uses.values()))


class _Transfers:
    """The transfers of a step."""

    def __init__(self, graph: Any, ops: Sequence[tf.Operation], lookups_wait: bool):
        self._graph = graph
        self._lookups_wait = lookups_wait
        self._flow = Dataflow(graph, ops)
        self._constants: dict[tuple[_Key, str], _Use] = {}
        self._messages: list[_Message] = []
        self._find(ops)

    def join(self) -> None:
        """Joins tensors into messages."""
        self._join_levels()
        # The ops made here depend on nothing but their inputs.
        with self._graph.as_default(), tf.control_dependencies(None), tf.device(None):
            for (_, task), use in self._constants.items():
                with tf.device(task):
                    value = tf.constant(tf.get_static_value(use.tensor))
                _give(use, value)
            for message in self._messages:
                _build(message)

    def _find(self, ops: Sequence[tf.Operation]) -> None:
        """Finds tensors that go from task to task, by their level in the dataflow."""
        flow = self._flow
        found: dict[tuple[str, str, int, str], dict[_Key, _Use]] = {}
        for consumer, op in enumerate(ops):
            target = flow.tasks[consumer]
            for index, tensor in enumerate(op.inputs):
                source = flow.number(tensor.op)
                if source is None or flow.tasks[source] == target:
                    continue
                key = (tensor.op, tensor.value_index)
                has_rows = False
                if not _can_be_joined(tensor):
                    has_rows = self._brings_others(tensor, flow.tasks[source], target)
                    if not has_rows:
                        continue
                if not has_rows and _is_constant(tensor):
                    use = self._constants.setdefault(
                        (key, target), _Use(tensor, source)
                    )
                else:
                    pair = (flow.tasks[source], target, flow.levels[source])
                    own = tensor.name if has_rows else ""
                    uses = found.setdefault((*pair, own), {})
                    use = uses.setdefault(key, _Use(tensor, source))
                use.inputs.append((op, index))
                use.consumers.add(consumer)
        for place, uses in sorted(found.items(), key=lambda x: x[0]):
            origin, target, _, of_rows = place
            rows_key = next(iter(uses)) if of_rows else None
            message = _Message(origin, target, uses, rows_key)
            sources = {use.source for use in uses.values()}
            message.node = flow.add_node(sources, message.consumers)
            self._messages.append(message)

    def _brings_others(self, tensor: tf.Tensor, origin: str, target: str) -> bool:
        """Returns whether a tensor has rows that can bring others along to a task."""
        if not rows.can_bring_others(tensor) or WORKER not in (origin, target):
            return False
        if rows.is_of_lookup(tensor) and not self._lookups_wait:
            return False
        # They would be copied if another op used them as well.
        numbers = map(self._flow.number, tensor.consumers())
        return all(n is not None and self._flow.tasks[n] == target for n in numbers)

    def _join_levels(self) -> None:
        """Makes a message wait for a later one if nothing depends on it until then."""
        kept: list[_Message] = []
        for message in self._messages:
            others = [
                x
                for x in kept
                if (x.origin, x.target) == (message.origin, message.target)
                and (x.rows is None or message.rows is None)
                and not self._flow.comes_before([x.node], [message.node])
                and not self._flow.comes_before([message.node], [x.node])
            ]
            if others:
                self._merge(others[-1], message)
            else:
                kept.append(message)
        self._messages = kept

    def _merge(self, into: _Message, message: _Message) -> None:
        for key, use in message.uses.items():
            present = into.uses.setdefault(key, use)
            if present is not use:
                present.inputs += use.inputs
                present.consumers |= use.consumers
        into.rows = into.rows or message.rows
        self._flow.add_edges([message.node], [into.node])
        self._flow.add_edges([into.node], message.consumers)


def _build(message: _Message) -> None:
    """Builds the ops of a message."""
    sent = {key: use.tensor for key, use in message.uses.items()}
    if len(sent) < 2:
        return
    if message.rows is None:
        with tf.device(message.origin):
            packed = packing.pack(list(sent.values()))
        with tf.device(message.target):
            parts = packing.unpack(packed, list(sent.values()))
    else:
        # The rows are the first part.
        sent = {message.rows: sent.pop(message.rows), **sent}
        first, *others = sent.values()
        with tf.device(message.origin):
            packed = rows.pack(first, others)
        with tf.device(message.target):
            parts = rows.unpack(packed, first, others)
    for key, part in zip(sent, parts, strict=True):
        _give(message.uses[key], part)


def _give(use: _Use, tensor: tf.Tensor) -> None:
    for op, index in use.inputs:
        graph_edges.replace_input(op, index, tensor)


def _can_be_joined(tensor: tf.Tensor) -> bool:
    return (
        tensor.dtype in _DTYPES
        and tensor.shape.is_fully_defined()
        and num_bytes(tensor) <= _LARGEST_BYTES
    )


def _is_constant(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is small, has a static value, and waits for nothing."""
    if tensor.shape.num_elements() > _LARGEST_CONSTANT:
        return False
    if tf.get_static_value(tensor) is None:
        return False
    ops = [tensor.op]
    for op in ops:
        if op.control_inputs:
            return False
        ops += [x.op for x in op.inputs if x.op not in ops]
    return True
