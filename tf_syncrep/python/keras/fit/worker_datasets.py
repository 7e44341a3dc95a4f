"""Datasets that workers make, each its own."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.data.work_queue import WorkQueue, queues_used
from tf_syncrep.python.keras.compat.coordinator import as_worker, dataset_of_workers


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

    def iterator(self) -> Any:
        """Returns what the coordinator schedules functions with: workers' iterators."""
        return iter(
            dataset_of_workers(
                self._coordinator,
                self._functions,
                self._functions[0].structured_outputs[1],
                lambda function: function(tf.constant(self.epoch, tf.int64))[1],
            )
        )

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


def endless(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """Repeats a dataset for ever; reading it raises a clear error if it is empty.

    Otherwise a step would fail with the error for the end of a sequence.
    """

    def fail(_: tf.Tensor) -> tf.data.Dataset:
        tf.debugging.Assert(False, [f"There are no batches: {name} is empty"])
        return dataset.take(0)

    return dataset.repeat().concatenate(tf.data.Dataset.from_tensors(0).flat_map(fail))
