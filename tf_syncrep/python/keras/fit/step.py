"""One step of a model, as it is traced into a function that workers run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.compat.coordinator import shorten_errors_of_closures
from tf_syncrep.python.keras.compat.graph_edges import (
    add_control_input,
    devices_of_captures,
    only_reads,
)
from tf_syncrep.python.keras.compat.tracing import (
    as_keras_traces,
    as_scheduled,
    replaced,
    traced_by,
    value_at_call,
)
from tf_syncrep.python.keras.fit.metrics import Metrics
from tf_syncrep.python.keras.parts import optimizers_of
from tf_syncrep.python.keras.sync_replicas.rounds import Rounds
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import rounds_of
from tf_syncrep.python.keras.transfers.transfers import joined_transfers


class Step:
    """A step of one kind of one model.

    Each call traces another step into the same graph. As in all functions of
    TensorFlow, the steps' effects on a variable have their order.
    """

    def __init__(
        self,
        model: Any,
        kind: str,
        next_number: Callable[[], int] | None,
        metrics: Metrics,
        prefetch_rows: bool = False,
    ):
        """Traces nothing yet.

        `next_number`: gives each execution a number to fold into the seeds; None if a
        single worker draws. `prefetch_rows`: whether rows come before the last step's
        updates. Then they do not wait for dense variables.
        """
        shorten_errors_of_closures()
        self._model = model
        self._kind = kind
        self._seeds_of = next_number and functools.partial(number_of, next_number)
        self.metrics = metrics
        self.prefetch_rows = prefetch_rows
        # A synchronous step waits for its permit before it reads any variable.
        self._rounds = rounds_of(model.optimizer) if kind == "train" else Rounds()

    def __call__(self, handles: list[tf.Tensor], batch: Any) -> Any:
        """Traces a step."""
        model, kind = self._model, self._kind

        def step_on(batch):
            with self.metrics.steps_on(handles), inlined(model):
                return as_keras_traces(getattr(model, f"{kind}_step"))(batch)

        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        joined = joined_transfers(lookups_wait=not self.prefetch_rows)
        with joined, self._rounds.step(), exact_state(self._seeds_of):
            with as_scheduled(model.distribute_strategy):
                result = model.distribute_strategy.run(step_on, args=(batch,))
            trainer.count_steps(model, kind)
            result = tf.nest.map_structure(_as_tensor, result)
        if kind == "train":
            counters = [optimizer.iterations for optimizer in optimizers_of(model)]
            _count_last(counters, graph.get_operations()[num_before:])
        return result

    def of_all(self, results: list[Any]) -> Any:
        """Returns the result of several steps: the last one's, or all predictions.

        Predictions are a list. They are joined here where the graph shows that they
        can be, so that less is fetched.
        """
        if self._kind != "predict":
            return results[-1]
        if len(results) == 1 or not _are_alike(results):
            return results
        return [
            tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *results)
        ]


def number_of(next_number: Callable[[], int]) -> tf.Tensor:
    """Returns the number that each call of the function being traced gets."""
    return value_at_call("execution", next_number, tf.TensorSpec([], tf.int64))


def _as_tensor(leaf: Any) -> Any:
    """Replaces a variable by its value."""
    return tf.convert_to_tensor(leaf) if hasattr(leaf, "assign") else leaf


@contextlib.contextmanager
def inlined(model: Any) -> Iterator[None]:
    """Within this context, a model's `tf.function`s are plain methods.

    Otherwise they would reuse an earlier trace, which belongs to another step, and what
    they do to metrics would be hidden.
    """
    names = {
        name
        for kind in type(model).__mro__
        for name, x in vars(kind).items()
        if hasattr(x, "python_function") and name not in vars(model)
    }
    with contextlib.ExitStack() as stack:
        for name in names:
            plain = traced_by(getattr(model, name))
            stack.enter_context(replaced(model, name, plain))
        yield


def _are_alike(results: Sequence[Any]) -> bool:
    """Returns whether outputs of steps are tensors that differ in batch sizes alone."""
    return all(
        isinstance(x, tf.Tensor) and x.shape.rank and x.shape[1:].is_fully_defined()
        for x in tf.nest.flatten(list(results))
    )


def _count_last(counters: Iterable[Any], ops: Sequence[tf.Operation]) -> None:
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


@contextlib.contextmanager
def exact_state(execution: Callable[[], tf.Tensor] | None = None) -> Iterator[None]:
    """Within this context, steps of a Keras 3 model are traced to lose no addition.

    This concerns additions by `assign_add` and `assign_sub`, such as the `iterations`
    of every optimizer, and seed generators, such as those of layers.

    `execution`: returns an int64 scalar that differs between steps that run at once. It
    is folded into the seeds, so that no two workers draw the same numbers; if None, a
    worker draws the numbers that one process would draw. It is called only if there are
    seeds.
    """
    if not compat.IS_KERAS_3:  # Keras 2 adds by one op.
        yield
        return
    variables, seeds = tf.keras.Variable, tf.keras.random.SeedGenerator
    with (
        replaced(variables, "assign_add", _by_one_op(variables.assign_add)),
        replaced(variables, "assign_sub", _by_one_op(variables.assign_sub)),
        replaced(seeds, "next", _next_seed(seeds.next, execution)),
    ):
        yield


def _by_one_op(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a Keras variable's `assign_add` or `assign_sub` one op."""

    def assign(variable: Any, value: Any) -> Any:
        if compat.in_stateless_scope():
            return stock(variable, value)
        shared = compat.native(variable)
        value = tf.cast(tf.convert_to_tensor(value), shared.dtype)
        if value.shape != shared.shape:
            value = tf.broadcast_to(value, shared.shape)
        getattr(shared, stock.__name__)(value)
        return shared

    return assign


def _next_seed(
    stock: Callable[..., Any], execution: Callable[[], tf.Tensor] | None
) -> Callable[..., Any]:
    """Makes a seed generator's `next` count by one op."""

    def next(generator: Any, ordered: bool = True) -> Any:
        if not ordered or compat.in_stateless_scope():
            return stock(generator, ordered=ordered)
        shared = compat.native(generator.state)
        seed = tf.identity(shared)
        with tf.control_dependencies([seed]):
            shared.assign_add(tf.constant([0, 1], shared.dtype))
        if execution is not None:
            # The first number is the same for all steps, and the second may be the
            # same for several workers.
            number = tf.cast(execution(), seed.dtype)
            seed += tf.stack([number, tf.zeros([], seed.dtype)])
        return seed

    return next
