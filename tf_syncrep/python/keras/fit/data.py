"""The batches of `fit`, and how they get to the workers."""

import abc
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.data.work_queue import WorkQueue, queues_used
from tf_syncrep.python.keras.compat import datasets
from tf_syncrep.python.keras.compat.data_adapters import Adapter
from tf_syncrep.python.keras.fit.adapters import without_optionals
from tf_syncrep.python.keras.fit.sizes import Sizes

NO_BATCHES = "`{}` must have a batch. Received: an empty dataset"

_RAN_OUT = (
    "fit: x ran out of data after %d of %d steps, which ends the epoch. Give fewer "
    "steps, or data that goes on: let a dataset repeat."
)

# One execution to schedule: the number of its steps, and the arguments of the function
# that `Batches.function` made for this number.
Scheduled = tuple[int, tuple[Any, ...]]
RunSteps = Callable[[list[Any]], Any]


class Batches(abc.ABC):
    """Batches for the steps of epochs.

    Attributes:
        num_steps: how many steps an epoch has; None if that is known only at its end.
        element_spec: the specs of a batch.
        argument: the argument of `fit`, `evaluate` or `predict` that has them.
        num_told: how many numbers an execution returns about itself, before those that
            its steps return.
    """

    num_steps: int | None
    element_spec: Any
    argument = "x"
    num_told = 0

    def begin_epoch(self, resume: bool) -> bool:
        """Begins an epoch.

        Args:
            resume: whether the epoch was begun before, and a checkpoint was saved in
                it.

        Returns:
            Whether there is an epoch left.
        """
        del resume
        return True

    def end_epochs(self) -> None:
        """Ends what `begin_epoch` began."""
        return

    @abc.abstractmethod
    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        """Yields the executions of one epoch, from a step on."""

    def signature(self, size: int) -> tuple[Any, ...] | None:
        """Returns the specs of an execution's arguments; None if these tell them."""
        del size
        return None

    @staticmethod
    @abc.abstractmethod
    def function(run_steps: RunSteps, size: int) -> Callable[..., Any]:
        """Returns the function of an execution, which is to be traced.

        It makes all steps of the execution, and returns `num_told` numbers, followed by
        what `run_steps` returned.

        Args:
            run_steps: makes a step on each batch of a list, and returns a vector of
                numbers and a list of other tensors.
            size: the number of steps.
        """


class SentBatches(Batches):
    """Batches that the coordinator reads and sends with each execution.

    Each is used exactly once, and one worker gets them in order.
    """

    def __init__(self, adapter: Adapter, goes_on: bool, argument: str = "x"):
        """Reads nothing yet.

        Args:
            adapter: the source of the batches.
            goes_on: whether an epoch goes on after the last batch of the epoch before,
                or begins with the first batch again.
            argument: the argument that has the batches, for errors.
        """
        self.argument = argument
        self._adapter = adapter
        self.element_spec = adapter.dataset.element_spec
        self._steps_of_epoch = adapter.steps_of_epoch
        self._goes_on = goes_on
        self._iterator: Any = None
        self._is_reading = self._has_read = False
        self.num_steps = adapter.steps_of_epoch or adapter.num_batches

    def begin_epoch(self, resume: bool) -> bool:
        """Begins an epoch if there is a batch; the first epoch finds that out later."""
        del resume
        return not self._has_read or self._has_batch()

    def first(self) -> Any:
        """Returns the first batch, and leaves it to be read again."""
        if not self._has_batch():
            raise ValueError(NO_BATCHES.format(self.argument))
        batch = next(self._iterator)
        self._iterator = itertools.chain([batch], self._iterator)
        return without_optionals(batch)

    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        """Yields the executions of one epoch, from a step on."""
        if not self._has_batch():
            raise ValueError(NO_BATCHES.format(self.argument))
        limit, first = self._steps_of_epoch, first_step
        next(itertools.islice(self._iterator, first_step, first_step), None)
        try:
            while limit is None or first < limit:
                size = sizes.next(None if limit is None else limit - first)
                batches = list(itertools.islice(self._iterator, size))
                if len(batches) == size:
                    yield size, (batches,)
                else:
                    yield from ((1, ([batch],)) for batch in batches)
                first += len(batches)
                if len(batches) < size:
                    if limit is not None:
                        logging.warning(_RAN_OUT, first, limit)
                    self._iterator = None
                    break
        finally:
            if not self._goes_on:
                self._iterator = None
            self.end_epochs()

    def end_epochs(self) -> None:
        """Ends the threads that read ahead."""
        if self._is_reading:
            self._is_reading = False
            self._adapter.end_epoch()

    def _has_batch(self) -> bool:
        """Returns whether there is a batch; goes back to the first if all were read."""
        if not self._is_reading:
            self._is_reading = True
            self._adapter.begin_epoch()
        for iterator in (self._iterator, self._adapter.dataset):
            if iterator is not None:
                self._iterator = iter(iterator)
                for batch in self._iterator:
                    self._iterator = itertools.chain([batch], self._iterator)
                    self._has_read = True
                    return True
        return False

    def signature(self, size: int) -> tuple[Any, ...]:
        """Returns the specs of the dataset, in which a batch's size may be unknown.

        The function must not be traced for each size: Keras weighs losses by the size
        of the batch if the trace knows it.
        """
        return ([self.element_spec] * size,)

    @staticmethod
    def function(run_steps: RunSteps, size: int) -> Callable[..., Any]:
        """Returns the function of an execution."""
        del size
        return lambda batches: run_steps([without_optionals(x) for x in batches])


class WorkersBatches(Batches):
    """Batches that each worker reads by itself, without a break between epochs."""

    def __init__(self, iterator: Any, num_steps: int, element_spec: Any):
        """Wraps the workers' iterators."""
        self._iterator = iterator
        self.element_spec = element_spec
        self._steps_of_epoch = self.num_steps = num_steps

    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        """Yields the executions of one epoch, from a step on."""
        first = first_step
        while first < self._steps_of_epoch:
            size = sizes.next(self._steps_of_epoch - first)
            yield size, (self._iterator,)
            first += size

    @staticmethod
    def function(run_steps: RunSteps, size: int) -> Callable[..., Any]:
        """Returns the function of an execution."""
        return lambda iterator: run_steps([next(iterator) for _ in range(size)])


class DatasetHere:
    """The workers' datasets, which are made in this process only if it needs them.

    Reading them leaves work queues as they were.
    """

    def __init__(self, functions: Sequence[Any], queues: Sequence[WorkQueue]):
        """Wraps the concrete functions that make the workers' datasets."""
        self._functions = functions
        self._queues = queues

    @property
    def element_spec(self) -> Any:
        """The specs of a batch, which are the same for all workers."""
        return self._functions[0].structured_outputs.element_spec

    def has_end(self) -> bool:
        """Returns whether each worker's dataset may have an end."""
        return bool(self._queues) or all(
            int(dataset.cardinality()) != int(tf.data.INFINITE_CARDINALITY)
            for dataset in self._made()
        )

    def __iter__(self) -> Iterator[Any]:
        """Reads the dataset of one worker after the other."""
        states = [queue.save() for queue in self._queues]
        try:
            for dataset in self._made():
                yield from dataset
        finally:
            # By now the threads that read ahead have ended.
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
    """Makes a dataset on each worker, with a function that gets the worker's number.

    The function is traced once for each worker, with Python numbers, so that it can use
    them in any way. A worker that comes back gets its dataset again.

    Returns:
        The datasets of the workers, for `iter`; the same datasets in this process; and
        the work queues that they read.

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
        if any(captured.dtype == tf.variant for captured in function.inputs):
            raise ValueError(
                "A function given for x must make its dataset from the beginning, as "
                "it is made on each worker. Received: one that uses a dataset made "
                "outside of it"
            )
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
    """Repeats a dataset for ever; reading it raises a clear error if it is empty.

    Otherwise a step would fail with the error for the end of a sequence.
    """

    def fail(_: tf.Tensor) -> tf.data.Dataset:
        tf.debugging.Assert(False, [f"There are no batches: {name} is empty"])
        return dataset.take(0)

    return dataset.repeat().concatenate(tf.data.Dataset.from_tensors(0).flat_map(fail))
