"""Steps that a worker makes in one call: their function, and what a call returns."""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.graph_edges import return_results_at_once
from tf_syncrep.python.keras.compat.tracing import (
    TRACING,
    captured_tensors,
    seeds_of_copy,
    traced_anew,
)
from tf_syncrep.python.keras.fit.batches import Batches
from tf_syncrep.python.keras.fit.metrics import NO_METRICS, Results
from tf_syncrep.python.keras.fit.step import Step
from tf_syncrep.python.keras.transfers.prefetch import read_rows_early
from tf_syncrep.python.ops import notice_ops


class Execution:
    """A function of several steps, and how the coordinator reads its results.

    The steps are traced one after the other into one graph. In one of TensorFlow's
    loops each step would cost more messages, since every task is told of every
    iteration; and an error within a loop, or in any function within the function, ends
    as the cancellation of what is around it.
    """

    def __init__(self, step: Step, kind: type[Batches], spec: Any, size: int):
        """Traces the function, of so many steps on such batches of a spec."""
        self._step = step
        self._metrics = metrics = step.metrics
        self._structure: Any = None
        # The function that adds to metrics is traced when it is first needed.
        self._add: Any = None

        def run(*args):
            notice_ops.note_work()  # so that the worker stays until it is done
            handles = metrics.handles_of_zeros()
            # The steps have handles of their own, by which all their writes are found.
            of_steps = list(map(tf.identity, handles))
            batches = kind.take(spec, size, *args)
            with TRACING, traced_anew():
                numbers, others = self._steps(of_steps, batches)
            numbers = tf.concat([numbers, metrics.values(handles)], axis=0)
            with tf.control_dependencies([numbers]):
                has_notice = tf.cast(notice_ops.note_work(), numbers.dtype)
            return tf.concat([numbers, has_notice[tf.newaxis]], axis=0), others

        function = tf.function(run, autograph=False)
        self.traced = function.get_concrete_function(*kind.signature(spec, size))
        _refuse_captured_datasets(self.traced)

    def _steps(self, handles: list[tf.Tensor], batches: Any) -> Any:
        """Makes a step on each batch, and packs what the coordinator needs of them."""
        return_results_at_once()
        graph = tf.compat.v1.get_default_graph()
        results, begins = [], []
        for i, batch in enumerate(batches):
            begins.append(len(graph.get_operations()))
            # These numbers also differ between executions of different sizes.
            with seeds_of_copy(len(batches) * (len(batches) - 1) + i):
                results.append(self._step(handles, batch))
        if self._step.prefetch_rows:
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
        self._packing, returned = _packed([*steps_own, *self._results.inputs])
        return returned

    def _added(self, sums: tf.Tensor, inputs: list[Any]) -> Any:
        """Adds what executions have added to metrics, and returns their results."""
        handles = self._metrics.add(sums)
        self._result_packing, returned = _packed(self._results.compute(handles, inputs))
        return returned

    def fetched(self, numbers: Any, others: list[Any]) -> tuple[Any, list[Any]]:
        """Fetches what a call returned."""
        return numbers.numpy(), [x.numpy() for x in others]

    @staticmethod
    def has_notice(fetched: tuple[Any, list[Any]]) -> bool:
        """Returns whether the worker is to leave."""
        return bool(fetched[0][-1])

    def take(self, fetched: tuple[Any, list[Any]]) -> Any:
        """Adds to the metrics, and returns what the steps returned as NumPy values."""
        numbers, others = fetched
        end = sum(map(bool, self._packing))
        leaves = _unpacked(self._packing, numbers[:end], others)
        if self._metrics is not NO_METRICS:
            num_inputs = len(self._results.inputs)
            leaves, inputs = leaves[: len(leaves) - num_inputs], leaves[-num_inputs:]
            sums = tf.constant(numbers[end:-1])
            if self._add is None:
                specs = [tf.TensorSpec(x.shape, x.dtype) for x in self._results.inputs]
                function = tf.function(self._added, autograph=False)
                self._add = function.get_concrete_function(sums, specs)
            numbers, others = self._add(sums, inputs if num_inputs else [])
            results = _unpacked(
                self._result_packing, numbers.numpy(), [x.numpy() for x in others]
            )
            for i, x in zip(self._results.indices, results, strict=True):
                leaves.insert(i, x)
        return tf.nest.pack_sequence_as(self._structure, leaves, expand_composites=True)


def _refuse_captured_datasets(traced: Any) -> None:
    """Raises if a function uses a dataset that is somewhere, and not its argument."""
    for x in captured_tensors(traced):
        # Nothing else tells a dataset from another variant.
        if x.dtype == tf.variant and "Dataset" in str(x):
            raise ValueError(
                "A step uses a tf.data.Dataset that the model, a metric or the loss "
                "holds. It is on the coordinator, and workers cannot read it: hold "
                "tensors, or evaluate in one process, as tfs.keras.SidecarEvaluator "
                f"does. Received: {x}"
            )


def _spec(leaf: Any) -> Any:
    """Returns the spec of a leaf that has several tensors, and 0 for any other."""
    (*_, part) = tf.nest.flatten(leaf, expand_composites=True)
    return 0 if part is leaf else tf.type_spec_from_value(leaf)


class Executions:
    """The functions of executions of one kind of steps, by the number of their steps.

    The main thread traces them: a worker's thread would trace for its worker alone.
    """

    def __init__(self, step: Step, kind: type[Batches], spec: Any, strategy: Any):
        self._of = step, kind, spec
        self._strategy = strategy
        self._by_size: dict[int, Execution] = {}

    def traced(self, size: int) -> Execution | None:
        """Returns the function of so many steps, or None if it was not traced."""
        return self._by_size.get(size)

    def trace(self, size: int) -> None:
        """Traces the function of so many steps, unless that was done."""
        if size not in self._by_size:
            with self._strategy.scope():
                self._by_size[size] = Execution(*self._of, size)


def _packed(leaves: list[Any]) -> tuple[list[Any], tuple[tf.Tensor, list[Any]]]:
    """Packs all numbers of which a float64 is as exact into one tensor.

    Returns for each leaf the NumPy dtype of a number that was packed, or None; and the
    tensor with the leaves that were not.
    """
    packing = [
        leaf.dtype.as_numpy_dtype if _is_plain_number(leaf) else None for leaf in leaves
    ]
    numbers = [
        tf.cast(leaf, tf.float64)
        for leaf, kind in zip(leaves, packing, strict=True)
        if kind
    ]
    others = [leaf for leaf, kind in zip(leaves, packing, strict=True) if not kind]
    stacked = tf.stack(numbers) if numbers else tf.zeros([0], tf.float64)
    return packing, (stacked, others)


def _unpacked(packing: list[Any], numbers: Any, others: Any) -> list[Any]:
    """Returns the leaves, of their dtypes, from what `_packed` returned."""
    numbers, others = iter(numbers), iter(others)
    return [kind(next(numbers)) if kind else next(others) for kind in packing]


def _is_plain_number(leaf: Any) -> bool:
    return (
        isinstance(leaf, tf.Tensor)
        and leaf.shape.rank == 0
        and (leaf.dtype.is_floating or (leaf.dtype.is_integer and leaf.dtype.size <= 4))
    )
