"""Where the batches of `fit` come from, and how they get to the workers."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.data.work_queue import WorkQueue, queues_used
from tf_syncrep.python.keras.compat import datasets

NO_BATCHES = "There are no batches. Received: an empty dataset"

# What is scheduled for one execution: its first step, the number of steps, and the
# arguments of the function that `Batches.function` made.
Execution = tuple[int, int, tuple[Any, ...]]


class Batches(abc.ABC):
    """Batches for the steps of epochs.

    Attributes:
        num_steps: steps of an epoch; None if that is known only at its end.
        num_told: how many numbers an execution returns about itself, before those that
            its last step returns.
    """

    num_steps: int | None
    num_told = 0

    def begin_epoch(self, resume: bool) -> bool:
        """Begins an epoch.

        Args:
            resume: whether it was begun before, by who saved a checkpoint in it.

        Returns:
            Whether there is one left.
        """
        del resume
        return True

    def end_epochs(self) -> None:
        """Ends what `begin_epoch` began."""
        return

    @abc.abstractmethod
    def executions(
        self, steps_per_execution: int, first_step: int = 0
    ) -> Iterator[Execution]:
        """The executions of one epoch, from a step on."""

    def signature(self, size: int) -> tuple[Any, ...] | None:
        """The specs of the arguments of an execution of `size` steps.

        None if they follow from the arguments.
        """
        del size
        return None

    @staticmethod
    @abc.abstractmethod
    def function(run_step: Callable[[Any], Any]) -> Callable[..., Any]:
        """What an execution does with its arguments.

        Args:
            run_step: runs a step on a batch, and returns a vector of numbers and a list
                of other tensors.

        Returns:
            A function, to be traced, that runs all steps of an execution and returns
            what the last one did, behind `num_told` numbers.
        """


class SentBatches(Batches):
    """Batches that the coordinator reads and sends with each execution.

    Each is used exactly once, and one worker gets them in order.

    Attributes:
        dataset: the batches.
    """

    def __init__(self, dataset: tf.data.Dataset, num_steps: int | None):
        """Wraps a dataset.

        Args:
            dataset: batches for one epoch, or if `num_steps` is given, for all of them.
            num_steps: steps of an epoch; None for as many as the dataset has.
        """
        self.dataset = dataset
        self._steps_of_epoch = num_steps
        self._iterator: Iterator[Any] | None = None
        self.num_steps = num_steps
        if num_steps is None:
            cardinality = int(dataset.cardinality())
            self.num_steps = cardinality if cardinality >= 0 else None

    def executions(
        self, steps_per_execution: int, first_step: int = 0
    ) -> Iterator[Execution]:
        """The executions of one epoch, from a step on."""
        limit = self._steps_of_epoch
        if self._iterator is None or limit is None:
            dataset = self.dataset.skip(first_step)
            self._iterator = iter(dataset.prefetch(tf.data.AUTOTUNE))
        first = first_step
        while True:
            size = steps_per_execution
            if limit is not None:
                size = min(size, limit - first)
            batches = []
            while len(batches) < size:
                batch = next(self._iterator, _END)
                if batch is _END:
                    break
                batches.append(batch)
            if not batches:
                if first == first_step == 0:
                    raise ValueError(NO_BATCHES)
                return
            yield first, len(batches), (batches,)
            first += len(batches)

    def signature(self, size: int) -> tuple[Any, ...]:
        """The specs of the dataset.

        Batches of another size are not to be another case: Keras weighs losses by the
        size of the batch if a trace knows it.
        """
        return ([self.dataset.element_spec] * size,)

    @staticmethod
    def function(run_step: Callable[[Any], Any]) -> Callable[..., Any]:
        """What an execution does with its arguments."""

        def run(batches):
            for batch in batches:
                result = run_step(batch)
            return result

        return run


class WorkersBatches(Batches):
    """Batches that each worker reads by itself, going on from epoch to epoch."""

    def __init__(self, iterator: Any, num_steps: int):
        """Wraps the workers' iterators.

        Args:
            iterator: what `iter` of a dataset of the ClusterCoordinator's is, without
                end.
            num_steps: steps of an epoch.
        """
        self._iterator = iterator
        self._steps_of_epoch = self.num_steps = num_steps

    def executions(
        self, steps_per_execution: int, first_step: int = 0
    ) -> Iterator[Execution]:
        """The executions of one epoch, from a step on."""
        for first in range(first_step, self._steps_of_epoch, steps_per_execution):
            size = min(steps_per_execution, self._steps_of_epoch - first)
            yield first, size, (self._iterator, tf.constant(size))

    @staticmethod
    def function(run_step: Callable[[Any], Any]) -> Callable[..., Any]:
        """What an execution does with its arguments."""

        def run(iterator, num_steps):
            result = run_step(next(iterator))
            return tf.while_loop(
                lambda step, _: step < num_steps,
                lambda step, _: (step + 1, run_step(next(iterator))),
                (1, result),
            )[1]

        return run


_END = object()


class DatasetHere:
    """What the workers read, made in this process only if it is looked at.

    Work queues are left as they were.
    """

    def __init__(self, functions: Sequence[Any], queues: Sequence[WorkQueue]):
        """Wraps the concrete functions that make the workers' datasets.

        Args:
            functions: a function for each worker.
            queues: those that the datasets read.
        """
        self._functions = functions
        self._queues = queues

    def has_end(self) -> bool:
        """Whether each worker's may have an end."""
        return bool(self._queues) or all(
            int(dataset.cardinality()) != int(tf.data.INFINITE_CARDINALITY)
            for dataset in self._made()
        )

    def __iter__(self) -> Iterator[Any]:
        """Reads one worker's after the other's."""
        states = [queue.save() for queue in self._queues]
        try:
            for dataset in self._made():
                yield from dataset
        finally:
            # Whatever was reading ahead has ended by now.
            for queue, state in zip(self._queues, states, strict=True):
                queue.restore(state)

    def _made(self) -> Iterator[tf.data.Dataset]:
        for worker, function in enumerate(self._functions):
            yield datasets.dataset_of_worker(function, worker)


def datasets_of_workers(
    coordinator: Any,
    num_workers: int,
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
) -> tuple[Any, DatasetHere, list[WorkQueue]]:
    """Makes the dataset of each worker by a function that is told which worker it is.

    The function is traced once for each worker, with Python numbers, so that it can do
    with them what it likes. A worker that comes back gets its dataset again.

    Args:
        coordinator: the ClusterCoordinator.
        num_workers: the number of its workers.
        dataset_fn: the function.

    Returns:
        What `iter` makes the workers' iterators of; the same in this process; and the
        work queues that they read.

    Raises:
        ValueError: the batches of two workers have different specs.
    """

    def refuse_variable(*_: Any, **__: Any) -> Any:
        raise ValueError(
            "A function given for x cannot make variables. Received: one that does"
        )

    functions = []
    queues: dict[int, WorkQueue] = {}
    for worker in range(num_workers):

        def make(worker: int = worker) -> tf.data.Dataset:
            return dataset_fn(tf.distribute.InputContext(num_workers, worker))

        with tf.variable_creator_scope(refuse_variable), queues_used() as used:
            function = tf.function(make, autograph=False).get_concrete_function()
        queues.update((id(queue), queue) for queue in used)
        functions.append(function)
        specs = [
            known.structured_outputs.element_spec for known in (functions[0], function)
        ]
        if specs[0] != specs[1]:
            raise ValueError(
                "A function given for x must make batches of the same specs for all "
                f"workers. Received: {specs[0]} for worker 0 and {specs[1]} for worker "
                f"{worker}"
            )
    used = list(queues.values())
    of_workers = datasets.dataset_of_workers(coordinator, functions)
    return of_workers, DatasetHere(functions, used), used


def endless(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """A dataset again and again; reading it fails with a sentence if it is empty.

    Without that, a step would end with the end of a sequence.
    """

    def fail(_: tf.Tensor) -> tf.data.Dataset:
        tf.debugging.Assert(False, [f"There are no batches: {name} is empty"])
        return dataset.take(0)

    return dataset.repeat().concatenate(tf.data.Dataset.from_tensors(0).flat_map(fail))


def dataset_of_arrays(
    arrays: tuple[Any, ...],
    batch_size: int | None,
    shuffle: bool = False,
    repeat: bool = False,
) -> tf.data.Dataset:
    """Batches of arrays: x, y and weights, or fewer, each a structure."""
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if shuffle:
        dataset = dataset.shuffle(max(1, int(dataset.cardinality())))
    if repeat:
        dataset = dataset.repeat()
    return dataset.batch(batch_size or 32)


def split_arrays(
    arrays: tuple[Any, ...], fraction: float
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Takes the last part of all arrays for validation, as `Model.fit` does."""
    num_examples = len(tf.nest.flatten(arrays)[0])
    split = int(np.floor(num_examples * (1.0 - fraction)))
    if not 0 < split < num_examples:
        raise ValueError(
            f"validation_split must leave examples on both sides of the split of "
            f"{num_examples}. Received: validation_split={fraction}"
        )
    return (
        tf.nest.map_structure(lambda array: array[:split], arrays),
        tf.nest.map_structure(lambda array: array[split:], arrays),
    )


def with_class_weights(
    dataset: tf.data.Dataset, class_weight: Mapping[int, float]
) -> tf.data.Dataset:
    """Adds to each batch the weights of its examples, by their class.

    As in Keras, classes without a weight weigh 1.
    """
    if not all(int(index) == index and index >= 0 for index in class_weight):
        raise ValueError(
            "class_weight must have integers from 0 on for keys. "
            f"Received: class_weight={dict(class_weight)}"
        )
    given = {int(index): float(weight) for index, weight in class_weight.items()}
    num_classes = max(given) + 1
    # One more for all classes above.
    weights = tf.constant([given.get(i, 1.0) for i in range(num_classes + 1)])

    def weigh(*batch):
        batch = batch[0] if len(batch) == 1 else batch
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        if sample_weight is not None:
            raise ValueError(
                "class_weight cannot be given together with sample weights."
            )
        if tf.nest.is_nested(y) or y is None:
            raise ValueError("class_weight is for models with a single output.")
        if y.shape.rank is not None and y.shape.rank >= 2:
            classes = tf.cond(
                tf.shape(y)[-1] > 1,
                lambda: tf.argmax(y, axis=-1, output_type=tf.int32),
                lambda: _as_class(y[..., 0]),
            )
        else:
            classes = _as_class(y)
        known = (classes >= 0) & (classes < num_classes)
        return x, y, tf.gather(weights, tf.where(known, classes, num_classes))

    return dataset.map(weigh, num_parallel_calls=tf.data.AUTOTUNE)


def _as_class(y: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(y) if y.dtype.is_floating else y, tf.int32)
