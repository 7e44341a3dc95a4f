"""Metrics whose state is in the coordinator, which adds up what executions return.

While a step is traced, the variables of metrics are replaced by variables of the worker
itself, which live as long as an execution. They are zero when it begins. At its end
they hold what its steps have added, which goes to the coordinator with the execution's
other results. So nothing is written on a server, an execution that is made again counts
once, and callbacks see the sum of the executions that they have been told of.

The results of metrics are computed from the sums: the part of the step's graph between
the variables and the results runs in the coordinator.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.deadline import within
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.compat.graph_edges import only_reads
from tf_syncrep.python.keras.compat.tracing import ANONYMOUS_NAME, standing_for
from tf_syncrep.python.keras.parts import parts_of

# How long an error waits for the variables of metrics to get their state.
_END_SECS = 5.0

# The ops that may lead from a variable's value to the value that is assigned, with the
# inputs that may hold it. With any other op, the assignment is not an addition.
_MAY_HOLD = {
    "Add": {0, 1},
    "AddV2": {0, 1},
    "Cast": {0},
    "Identity": {0},
    "Sub": {0},
    "TensorScatterAdd": {0},
}


class Metrics:
    """The state of metrics, in this process and on workers."""

    def __init__(self, owners: Mapping[Any, str]):
        # The name of the metric of each of TensorFlow's variables. The keys are
        # references, since variables cannot be compared.
        self._owners = owners
        self._variables = [ref.deref() for ref in owners]
        self._name = f"tf_syncrep_metrics_{uuid.uuid4().hex}"
        self._here: list[tf.Tensor] = []

    def has_variables_of(self, other: "Metrics") -> bool:
        """Returns whether the variables are the same."""
        return self._owners.keys() == other._owners.keys()

    def steps_on(self, handles: Sequence[tf.Tensor]) -> Any:
        """Within this context, other variables stand for those of the metrics."""
        return standing_for(self._variables, handles)

    def handles_of_zeros(self) -> list[tf.Tensor]:
        """Handles of new variables of the task on which these ops run, set to zero.

        A worker that was taken for lost may still be in an execution when it begins
        another one, so each has its own.
        """
        handles = [_handle(variable, ANONYMOUS_NAME) for variable in self._variables]
        for handle, variable in zip(handles, self._variables, strict=True):
            zeros = tf.zeros(variable.shape, variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)
        return handles

    def values(self, handles: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the values of these variables in one vector."""
        values = [
            tf.reshape(tf.cast(_read(handle, variable), tf.float64), [-1])
            for handle, variable in zip(handles, self._variables, strict=True)
        ]
        return tf.concat([tf.zeros([0], tf.float64), *values], axis=0)

    def add(self, values: tf.Tensor) -> list[tf.Tensor]:
        """Adds to the variables of this process, and returns their handles."""
        handles = list(map(tf.identity, self._here))
        sizes = [variable.shape.num_elements() for variable in self._variables]
        for handle, variable, value in zip(
            handles, self._variables, tf.split(values, sizes), strict=True
        ):
            value = tf.reshape(tf.cast(value, variable.dtype), variable.shape)
            tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)
        return handles

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Within this context, all metrics have their state in this process."""
        with tf.device("CPU:0"):
            self._here = [
                _handle(variable, f"{self._name}_{i}")
                for i, variable in enumerate(self._variables)
            ]
        for handle, variable in zip(self._here, self._variables, strict=True):
            value = variable.read_value()
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        try:
            with standing_for(self._variables, self._here):
                yield
        except BaseException:
            # A server may be lost, or not answer.
            within(_END_SECS, self._leave)
            raise
        self._leave()

    def _leave(self) -> None:
        """Sets the metrics' own variables, and deletes those of this process."""
        try:
            for handle, variable in zip(self._here, self._variables, strict=True):
                variable.assign(_read(handle, variable))
        finally:
            for handle in self._here:
                tf.raw_ops.DestroyResourceOp(resource=handle)

    def check(self, handles: Sequence[tf.Tensor]) -> None:
        """Raises if a step does anything to metrics but add, or trains by them.

        `handles`: the handles of the variables in the graph of a traced step. Of the
        functions that the step calls it is only seen whether they read.
        """
        reads = _reads(handles)
        state = _made_of(reads)
        for handle, variable in zip(handles, self._variables, strict=True):
            for op in handle.consumers():
                if op in reads:
                    continue
                if op.type == "AssignVariableOp":
                    is_sum = _is_addition(op.inputs[1], handle, state)
                else:
                    is_sum = not any(x.op in state for x in op.inputs)
                if not is_sum:
                    raise ValueError(
                        "A metric must be a sum: a batch adds to its variables, and "
                        "does nothing else to them. Received: metric "
                        f"{self._owners[variable.ref()]}, whose update does. With one "
                        "worker it works if its variables are made by "
                        'add_variable(..., aggregation="mean")'
                    )
        own = {handle.name for handle in handles}
        for op in state:
            others = [x for x in op.inputs if x.dtype == tf.resource]
            if any(x.name not in own for x in others):
                raise ValueError(
                    "A step cannot use the values of metrics but to return them: they "
                    "are in the coordinator. Received: a step that gives them to "
                    f"{op.type} {op.name}"
                )


NO_METRICS = Metrics({})


def metrics_of(model: Any, num_workers: int) -> Metrics:
    """Returns the metrics of a model, and of models in it, that are sums.

    Raises ValueError: a metric declares that it is no sum, and there are several
    workers.
    """
    # Keras 3 leaves out the metrics of models within the model.
    models = [x for x in trainer.layers_of(model) if isinstance(x, tf.keras.Model)]
    parts = [part for x in models for part in parts_of(x, tf.keras.metrics.Metric)]
    metrics = [*model.metrics, *parts]
    # The metrics of `compile` are parts of another one, and have the names.
    metrics = [part for x in metrics for part in (*getattr(x, "metrics", ()), x)]
    owners: dict[Any, str] = {}
    for metric in metrics:
        for variable in metric.variables:
            if _is_sum(variable):
                native = compat.native(variable)
                for piece in getattr(native, "variables", [native]):
                    owners.setdefault(piece.ref(), metric.name)
            elif num_workers > 1:
                raise ValueError(
                    "A metric must be a sum for several workers to add to it. "
                    f"Received: metric {metric.name}, a variable of which has "
                    f"aggregation={variable.aggregation}"
                )
    return Metrics(owners)


class Results:
    """The results of metrics that a step returns, computed from their sums."""

    def __init__(self, leaves: Sequence[Any], handles: Sequence[tf.Tensor]):
        """Finds them in the graph of a step."""
        state = _made_of(_reads(handles))
        own = {handle.name: i for i, handle in enumerate(handles)}
        self.indices = [
            i
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, tf.Tensor) and leaf.op in state
        ]
        self.inputs: list[tf.Tensor] = []
        self._names = [leaves[i].name for i in self.indices]
        self._graph_def = tf.compat.v1.GraphDef()
        self._handles: dict[str, int] = {}
        self._constants: dict[str, Any] = {}
        found = [leaves[i] for i in self.indices]
        seen: set[Any] = set()
        for x in found:
            key = x.op if x.op in state else x.name
            if key in seen:
                continue
            seen.add(key)
            if x.op in state:
                self._graph_def.node.append(_alone(x.op.node_def))
                found.extend(x.op.inputs)
            elif x.name in own:
                self._handles[x.name] = own[x.name]
            elif (value := tf.get_static_value(x)) is not None:
                self._constants[x.name] = value
            else:
                self.inputs.append(x)
        self._names_of_inputs = [x.name for x in self.inputs]

    def compute(self, handles: Sequence[tf.Tensor], inputs: Sequence[Any]) -> list[Any]:
        """Computes the results from variables and the values of `inputs`."""
        known = dict(self._constants)
        known.update((name, handles[i]) for name, i in self._handles.items())
        known.update(zip(self._names_of_inputs, inputs, strict=True))
        return tf.graph_util.import_graph_def(
            self._graph_def, input_map=known, return_elements=self._names
        )


def _is_sum(variable: Any) -> bool:
    """Returns whether replicas' values of a metric's variable are to be added up."""
    kinds = ("sum", tf.VariableAggregation.SUM)
    return getattr(variable, "aggregation", "sum") in kinds


def _handle(variable: Any, name: str) -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(
        dtype=variable.dtype, shape=variable.shape, shared_name=name
    )


def _read(handle: tf.Tensor, variable: Any) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)


def _reads(handles: Sequence[tf.Tensor]) -> set[tf.Operation]:
    """Returns the ops that do nothing to resources but read these variables.

    Some are calls of functions, branches and loops.
    """
    own = {handle.name for handle in handles}
    return {
        op
        for handle in handles
        for op in handle.consumers()
        if only_reads(op)
        and all(x.name in own for x in op.inputs if x.dtype == tf.resource)
    }


def _made_of(reads: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns the ops whose outputs depend on what was read, and the reads."""
    found = [*reads]
    seen = {*found}
    for op in found:
        for consumer in (x for output in op.outputs for x in output.consumers()):
            if consumer not in seen:
                seen.add(consumer)
                found.append(consumer)
    return seen


def _is_addition(x: tf.Tensor, handle: tf.Tensor, state: set[tf.Operation]) -> bool:
    """Returns whether a value is a variable's, plus terms that do not depend on it."""
    if x.op.type == "ReadVariableOp":
        return x.op.inputs[0].name == handle.name
    holding = [i for i, y in enumerate(x.op.inputs) if y.op in state]
    return (
        len(holding) == 1
        and holding[0] in _MAY_HOLD.get(x.op.type, ())
        and _is_addition(x.op.inputs[holding[0]], handle, state)
    )


def _alone(node: Any) -> Any:
    """Copies a node without its ties to other nodes or devices."""
    alone = tf.compat.v1.NodeDef()
    alone.CopyFrom(node)
    alone.device = ""
    alone.attr.pop("_class", None)
    data = [x for x in node.input if not x.startswith("^")]
    del alone.input[:]
    alone.input.extend(data)
    return alone
