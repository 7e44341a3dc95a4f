"""Steps that a worker makes in one call: their function, and the results of a call."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.call_time import value_at_call
from tf_syncrep.python.keras.compat.graph_edges import return_results_at_once
from tf_syncrep.python.keras.compat.lost_workers import may_be_lost
from tf_syncrep.python.keras.compat.random_seeds import seeds_of_copy
from tf_syncrep.python.keras.compat.traces import only_trace_of, traced_anew
from tf_syncrep.python.keras.fit.data import Batches
from tf_syncrep.python.keras.fit.metrics import NO_METRICS, Metrics, Results
from tf_syncrep.python.keras.fit.packing import packed, unpacked
from tf_syncrep.python.keras.fit.step import Step
from tf_syncrep.python.keras.transfers.prefetch import read_rows_early

# While steps are traced, others stand for methods of Keras and functions of TensorFlow,
# which are the same for all threads.
_TRACING = threading.Lock()


class Execution:
    """A function of several steps, and how the coordinator reads its results.

    The steps are traced one after the other into one graph. In one of TensorFlow's
    loops each step would cost more messages, since every task is told of every
    iteration.

    The coordinator calls concrete functions, for each execution the same ones. To find
    them by their arguments would take it longer than all else that it does for a call.

    Attributes:
        function: a `tf.function` of an execution's arguments.
    """

    def __init__(
        self,
        step: Step,
        metrics: Metrics,
        batches: Batches,
        size: int,
        next_number: Callable[[], int],
        prefetch_rows: bool = False,
    ):
        """Traces nothing yet.

        Args:
            step: traces a step.
            metrics: the state of metrics.
            batches: the data of the steps.
            size: the number of steps; `batches` may have fewer at their end.
            next_number: gives each execution a number, if its steps ask for one.
            prefetch_rows: whether a step looks up rows before the last step's updates.
        """
        self._step = step
        self._prefetch_rows = prefetch_rows
        self._metrics = metrics
        self._num_told = batches.num_told
        self._structure: Any = None
        # They are traced when they are first needed.
        self._traced: Any = None
        self._add: Any = None

        def number():
            return value_at_call("execution", next_number, tf.TensorSpec([], tf.int64))

        def run(*args):
            handles = metrics.handles_of_zeros()

            # The steps are not in a function of their own, unless a loop calls it: with
            # each call of a function the worker and each server exchange messages. But
            # they have handles of their own, by which all their writes can be found.
            def steps(batches):
                with _TRACING, traced_anew():
                    return self._steps(number, list(map(tf.identity, handles)), batches)

            on_batches = batches.function(steps, size)
            numbers, others = on_batches(*args)
            return tf.concat([numbers, metrics.values(handles)], axis=0), others

        self.function = tf.function(
            run, input_signature=batches.signature(size), autograph=False
        )

    def schedule(self, coordinator: Any, args: tuple[Any, ...]) -> Any:
        """Schedules a call; returns its `RemoteValue`."""
        if self._traced is not None:
            return coordinator.schedule(self._traced, args=args)
        # The coordinator traces it.
        value = coordinator.schedule(self.function, args=args)
        self._traced = only_trace_of(self.function)
        return value

    def _steps(
        self,
        number: Callable[[], tf.Tensor],
        handles: list[tf.Tensor],
        batches: Any,
    ) -> Any:
        """Makes a step on each batch, and packs what the coordinator needs of them."""
        return_results_at_once()
        graph = tf.compat.v1.get_default_graph()
        results, begins = [], []
        for i, batch in enumerate(batches):
            begins.append(len(graph.get_operations()))
            # These numbers also differ between executions of different sizes.
            with seeds_of_copy(len(batches) * (len(batches) - 1) + i):
                results.append(self._step(number, handles, batch))
        if self._prefetch_rows:
            ops = graph.get_operations()
            ranges = itertools.pairwise([*begins, len(ops)])
            read_rows_early(graph, [ops[begin:end] for begin, end in ranges])
        result = self._step.of_all(results)
        self._metrics.check(handles)
        # What consists of several tensors is fetched as these, and put together again.
        leaves = tf.nest.flatten(result, expand_composites=True)
        self._results = Results(leaves, handles)
        self._structure = tf.nest.map_structure(_spec, result)
        steps_own = [
            leaf for i, leaf in enumerate(leaves) if i not in self._results.indices
        ]
        self._packing, returned = packed([*steps_own, *self._results.inputs])
        return returned

    def _trace_addition(self, sums: tf.Tensor) -> Any:
        """Traces `_added` for what executions return, of which packed numbers are real.

        Args:
            sums: those of one execution.
        """
        inputs = self._results.inputs
        packing = self._packing[len(self._packing) - len(inputs) :]
        specs = [
            tf.TensorSpec(x.shape, tf.float64 if is_packed else x.dtype)
            for x, is_packed in zip(inputs, packing, strict=True)
        ]
        function = tf.function(self._added, autograph=False)
        spec = tf.TensorSpec(sums.shape, sums.dtype)
        return function.get_concrete_function(spec, specs)

    def _added(self, sums: tf.Tensor, inputs: list[Any]) -> Any:
        """Adds what executions have added to metrics, and returns their results."""
        handles = self._metrics.add(sums)
        self._result_packing, returned = packed(self._results.compute(handles, inputs))
        return returned

    def told(self, fetched: tuple[Any, list[Any]]) -> tuple[int, ...]:
        """Returns the numbers that a call returns about itself."""
        return tuple(int(x) for x in fetched[0][: self._num_told])

    def take(self, fetched: tuple[Any, list[Any]]) -> Any:
        """Adds to the metrics, and returns what the steps returned as NumPy values."""
        numbers, others = fetched
        end = self._num_told + sum(self._packing)
        leaves = unpacked(self._packing, numbers[self._num_told : end], others)
        if self._metrics is not NO_METRICS:
            num_inputs = len(self._results.inputs)
            leaves, inputs = leaves[: len(leaves) - num_inputs], leaves[-num_inputs:]
            sums = tf.constant(numbers[end:])
            if self._add is None:
                self._add = self._trace_addition(sums)
            numbers, others = self._add(sums, inputs if num_inputs else [])
            results = unpacked(
                self._result_packing, numbers.numpy(), [x.numpy() for x in others]
            )
            for i, x in zip(self._results.indices, results, strict=True):
                leaves.insert(i, x)
        return tf.nest.pack_sequence_as(self._structure, leaves, expand_composites=True)


def _spec(leaf: Any) -> Any:
    """Returns the spec of a leaf that has several tensors, and 0 for any other."""
    (*_, part) = tf.nest.flatten(leaf, expand_composites=True)
    return 0 if part is leaf else tf.type_spec_from_value(leaf)


class Result:
    """The result of a call of an execution's function, present or future."""

    def __init__(self, coordinator: Any, execution: Execution, args: tuple[Any, ...]):
        """Schedules the call."""
        self._coordinator = coordinator
        self._execution = execution
        self._args = args
        self._value = execution.schedule(coordinator, args)
        self._is_over = False
        self._fetched: Any = None
        self._error: Exception | None = None

    def again(self) -> Result:
        """Schedules the same call once more."""
        return Result(self._coordinator, self._execution, self._args)

    def wait(self) -> None:
        """Waits for the end of the execution, also if it failed."""
        try:
            self._fetched = self._value.fetch()
        except Exception as error:  # Nobody would notice the failure of a thread.
            self._error = error
        self._is_over = True

    def told(self) -> tuple[int, ...] | None:
        """Returns the numbers that the execution, which has ended, told about itself.

        None if it failed.
        """
        return None if self._error else self._execution.told(self._fetched)

    def fetch(self, if_lost: Any) -> Any:
        """Waits for the end of the execution and returns what the steps returned.

        Args:
            if_lost: returned if the worker that ran the execution was lost before its
                result was fetched. The execution has nevertheless updated variables.

        Raises:
            Exception: the execution, or one beside it, failed, or its result is
                nothing that can be fetched.
        """
        if not self._is_over:
            self.wait()
        if self._error is None:
            return self._execution.take(self._fetched)
        if isinstance(self._error, tf.errors.OpError):
            # This raises the execution's own error, if there was one.
            self._coordinator.join()
            if may_be_lost(self._error):
                return if_lost
        raise self._error
