"""Datasets that workers make, each its own, and the order in which they read them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.data.work_queue import WorkQueue, queues_used
from tf_syncrep.python.keras.compat.coordinator import (
    as_worker,
    dataset_of_workers,
    worker_index,
)
from tf_syncrep.python.keras.compat.iterators import EndableDataset, end_iterators
from tf_syncrep.python.ops import notice_ops

# Such ops make workers read in different orders, or different parts; a Python generator
# may do so as well.
_SHUFFLES = ("Shuffle", "Random")
_PARTS_OR_SHUFFLES = (*_SHUFFLES, "Shard", "PyFunc", "Sampl")


class WorkersDatasets:
    """A dataset on each worker, made by a function that gets the worker's number.

    The function is traced once for each worker, with Python numbers, so that it can use
    them in any way. A worker that comes back gets its dataset again.
    """

    def __init__(
        self,
        coordinator: Any,
        num_workers: int,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        read: Callable[[tf.data.Dataset, int, tf.Tensor], tf.data.Dataset],
    ):
        """Traces the function.

        Raises ValueError: the function does something that cannot be done on workers,
        or the batches of two workers have different specs.
        """
        self.epoch = 0
        self.num_workers = num_workers
        self._coordinator = coordinator
        self._functions = []
        queues: dict[int, WorkQueue] = {}
        specs = []
        for worker in range(num_workers):

            def make(epoch: tf.Tensor, worker: int = worker) -> Any:
                dataset = dataset_fn(tf.distribute.InputContext(num_workers, worker))
                specs.append(dataset.element_spec)
                return dataset, read(dataset, worker, epoch)

            function = tf.function(make, autograph=False)
            with tf.variable_creator_scope(_refuse_variable), queues_used() as used:
                traced = function.get_concrete_function(tf.TensorSpec([], tf.int64))
            if any(captured.dtype == tf.variant for captured in traced.inputs):
                raise ValueError(
                    "A function given for x must make its dataset from the beginning, "
                    "as it is made on each worker. Received: one that uses a dataset "
                    "made outside of it"
                )
            queues.update((id(queue), queue) for queue in used)
            self._functions.append(traced)
            if specs[-1] != specs[0]:
                raise ValueError(
                    "A function given for x must make batches of the same specs for "
                    f"all workers. Received: {specs[0]} for worker 0 and {specs[-1]} "
                    f"for worker {worker}"
                )
        self.element_spec = specs[0]
        self.queues = list(queues.values())
        # Each worker's thread writes that of its own worker alone.
        self._on_workers: dict[int, EndableDataset] = {}

    @functools.cached_property
    def iterator(self) -> Any:
        """What the coordinator schedules functions with: workers' iterators.

        Each begins with the `epoch` in which its worker makes it.
        """

        def make(function: Any) -> EndableDataset:
            made = EndableDataset(function(tf.constant(self.epoch, tf.int64))[1])
            self._on_workers[worker_index()] = made
            return made

        return iter(
            dataset_of_workers(
                self._coordinator,
                self._functions,
                self._functions[0].structured_outputs[1],
                make,
            )
        )

    def end_iterators(self) -> None:
        """Ends the iterators of workers."""
        # A worker that has just come back may be adding its own.
        end_iterators([*self._on_workers.values()])

    def let_leave(self, *workers: int, is_gone: bool = False) -> None:
        """Lets work queues give these workers no more items."""
        for queue in self.queues:
            for worker in workers:
                queue.let_leave(f"/job:worker/replica:0/task:{worker}", is_gone)

    def have_ends(self) -> bool:
        """Returns whether each worker's dataset may have an end."""
        return bool(self.queues) or all(
            int(dataset.cardinality()) != int(tf.data.INFINITE_CARDINALITY)
            for dataset in self._made_here()
        )

    def batches_here(self) -> Iterator[Any]:
        """Reads the dataset of one worker after the other, in this process.

        This leaves work queues as they were, and takes nothing from a job of tf.data
        service that workers share.
        """
        states = [queue.save() for queue in self.queues]
        try:
            for dataset in self._made_here():
                yield from dataset
        finally:
            # By now the threads that read ahead have ended.
            for queue, state in zip(self.queues, states, strict=True):
                queue.restore(state)

    def _made_here(self) -> Iterator[tf.data.Dataset]:
        for worker, function in enumerate(self._functions):
            with as_worker(worker):
                dataset = _made_apart(function, tf.constant(0, tf.int64))
            yield dataset


def _made_apart(function: Any, epoch: tf.Tensor) -> tf.data.Dataset:
    """Calls the function of a worker for a dataset that shares no job with workers.

    What comes from tf.data service then comes from a job without a name, which nobody
    else can read.
    """
    served = {
        op.name: [arg.name for arg in op.op_def.input_arg].index("job_name")
        for op in function.graph.get_operations()
        if op.type.startswith("DataServiceDataset")
    }
    if not served:
        return function(epoch)[0]
    graph_def = function.graph.as_graph_def()
    no_name = graph_def.node.add(name="job_without_a_name", op="Const")
    no_name.attr["dtype"].type = tf.string.as_datatype_enum
    no_name.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(""))
    for node in graph_def.node:
        if node.name in served:
            node.input[served[node.name]] = no_name.name

    def imported(*inputs: tf.Tensor) -> list[tf.Tensor]:
        names = [x.name for x in function.inputs]
        return tf.graph_util.import_graph_def(
            graph_def,
            dict(zip(names, inputs, strict=True)),
            [function.outputs[0].name],
            name="",
        )

    specs = [tf.TensorSpec(x.shape, x.dtype) for x in function.inputs]
    (variant,) = tf.compat.v1.wrap_function(imported, specs)(
        epoch, *function.captured_inputs
    )
    spec = function.structured_outputs[0].element_spec
    return tf.data.experimental.from_variant(variant, spec)


def _refuse_variable(*_: Any, **__: Any) -> Any:
    raise ValueError(
        "A function given for x cannot make variables. Received: one that does"
    )


def copied(dataset: tf.data.Dataset) -> Callable[[Any], tf.data.Dataset]:
    """Returns a function that makes a copy of a dataset, on any task."""
    graph_def = _graph_def_of(dataset, 0)  # With a warning of state outside the graph.
    return lambda _: tf.data.experimental.from_variant(
        tf.raw_ops.DatasetFromGraph(graph_def=graph_def), dataset.element_spec
    )


def endless(
    dataset: tf.data.Dataset, name: str, num_skipped: int | tf.Tensor
) -> tf.data.Dataset:
    """Repeats a dataset for ever, without so many of the first times.

    Reading it raises a clear error if it is empty. Otherwise a step would fail with the
    error for the end of a sequence.
    """

    def fail(_: tf.Tensor) -> tf.data.Dataset:
        tf.debugging.Assert(False, [f"There are no batches: {name} is empty"])
        return dataset.take(0)

    failing = tf.data.Dataset.from_tensors(0).flat_map(fail)
    epochs = _skipped(dataset, num_skipped).concatenate(dataset.repeat())
    return epochs.concatenate(failing)


def in_chunks(
    dataset: tf.data.Dataset, size: int, num_skipped: int | tf.Tensor = 0
) -> tf.data.Dataset:
    """Returns a dataset that reads another one again and again, in chunks.

    It iterates over the dataset anew for each epoch, as Keras does: the next epoch is
    shuffled in another order, and a cache stays. It reads no batch before its chunk is
    asked for.

    `size`: how many batches a chunk has; the last one of an epoch may have fewer.
    """
    end = tf.data.Dataset.from_tensors(0).map(
        lambda _: tf.raw_ops.OptionalNone()[tf.newaxis]
    )
    # A map would be made parallel, and read ahead.
    chunks = dataset.scan(0, lambda state, *batch: (state, _held(*batch))).batch(size)
    # Nor is the next epoch to be read in advance.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    epochs = _skipped(chunks, num_skipped).concatenate(chunks.concatenate(end).repeat())
    return epochs.with_options(options)


def _skipped(dataset: tf.data.Dataset, num: int | tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset without elements that iterates so many times over another one.

    It reads nothing. To make an iterator is to draw the seeds of a shuffle.
    """
    first = tf.data.Dataset.range(1)
    # `zip` would read an element.
    return tf.data.Dataset.range(num).flat_map(
        lambda _: tf.data.Dataset.choose_from_datasets(
            [dataset.take(0), dataset], first
        )
    )


# The spec of the iterators of such datasets.
ITERATOR_SPEC = tf.data.IteratorSpec(tf.TensorSpec([None], tf.variant))


def _held(*batch: Any) -> tf.Tensor:
    """Holds a batch in a variant, as optionals can be batched only so."""
    tensors = tf.nest.flatten(batch, expand_composites=True)
    return tf.raw_ops.OptionalFromValue(components=tensors)


def take_chunk(iterator: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads a chunk, and returns it with the number of its batches; 0 at an end."""
    notice_ops.note_work()  # so that the worker stays, and its execution tells of it
    chunk = next(iterator)
    is_chunk = tf.raw_ops.OptionalHasValue(optional=chunk[0])
    return chunk, tf.where(is_chunk, tf.shape(chunk)[0], 0)


def batch_of(chunk: tf.Tensor, i: tf.Tensor, spec: Any) -> Any:
    """Returns a batch of a chunk, of the given specs."""
    leaves = tf.nest.flatten(spec, expand_composites=True)
    tensors = tf.raw_ops.OptionalGetValue(
        optional=chunk[i],
        output_types=[leaf.dtype for leaf in leaves],
        output_shapes=[leaf.shape for leaf in leaves],
    )
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)


def differs_between_workers(dataset: tf.data.Dataset) -> bool:
    """Returns whether copies of a dataset may be read in different orders, or in parts.

    It looks at the names of the operations in the dataset. If these are unknown, it
    returns True.
    """
    return _has(dataset, _PARTS_OR_SHUFFLES)


def is_shuffled(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset shuffles, as far as the names of its ops tell."""
    return _has(dataset, _SHUFFLES)


def _has(dataset: tf.data.Dataset, names: Sequence[str]) -> bool:
    """Returns whether an op of a dataset has one of these names in its own."""
    try:
        # State outside the graph does not matter here.
        graph_def = _graph_def_of(dataset, 1)
    except tf.errors.OpError:
        return True
    graph = tf.compat.v1.GraphDef.FromString(graph_def.numpy())
    nodes = [graph.node, *(function.node_def for function in graph.library.function)]
    ops = {node.op for some in nodes for node in some}
    return any(name in op for op in ops for name in names)


def _graph_def_of(dataset: tf.data.Dataset, external_state_policy: int) -> Any:
    return tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=external_state_policy,
        strip_device_assignment=True,
    )
