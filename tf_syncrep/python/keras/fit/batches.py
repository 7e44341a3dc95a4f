"""The batches of `fit`, and how they get to the workers."""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras.compat.coordinator import is_made, worker_index
from tf_syncrep.python.keras.compat.data_adapters import Adapter
from tf_syncrep.python.keras.compat.iterators import EndableDataset, end_iterators
from tf_syncrep.python.keras.fit.adapters import without_optionals
from tf_syncrep.python.keras.fit.ends import Ends, Window
from tf_syncrep.python.keras.fit.sizes import Sizes
from tf_syncrep.python.keras.fit.worker_datasets import (
    ITERATOR_SPEC,
    WorkersDatasets,
    batch_of,
    is_shuffled,
    take_chunk,
)

NO_BATCHES = "`{}` must have a batch. Received: an empty dataset"

_RAN_OUT = (
    "%s ran out of data after %d of %d steps, which ends the epoch. Give fewer steps, "
    "or data that goes on: let a dataset repeat."
)

_OTHER_ORDER = (
    "fit: the epoch goes on after %d batches of another order, since its data is "
    "shuffled: some of it comes twice in this epoch, and some not at all. Only a "
    "tfs.data.WorkQueue knows what is left."
)

_ALL_AGAIN = (
    "fit: the epoch goes on with all of its data again, since workers read it to its "
    "end. Only a tfs.data.WorkQueue knows what is left."
)

# How many times a pass may find that a worker has not made its data, before it goes on
# without it. It asks 20 times a second, so this is ten minutes.
_PATIENCE = 12_000

# Makes a concrete function end when closures of the coordinator are cancelled.
Cancelable = Callable[[Any], Callable[..., Any]]


class Scheduled(NamedTuple):
    """An execution to schedule.

    `size`: how many steps it has; the worker may have data for fewer. `args`: what
    `Batches.due` gets, of which each worker gets its part.
    """

    size: int
    args: tuple[Any, ...]


class Batches(abc.ABC):
    """Batches for the steps of epochs.

    `num_steps`: how many steps an epoch has; None if that is known only at its end.
    """

    num_steps: int | None
    element_spec: Any
    argument = "x"

    def begin_epoch(self, epoch: int, resume: bool) -> bool:
        """Begins an epoch."""
        del epoch, resume
        return True

    def end_epochs(self) -> None:
        """Ends what `begin_epoch` began."""
        return

    def close(self) -> None:
        """Ends the iterators, when all executions have ended."""
        return

    def counts_items(self) -> bool:
        """Returns whether work queues count what was read, and not steps."""
        return False

    def let_end(self) -> bool:
        """Lets workers begin no more of their data, as training is to stop.

        Returns whether they come to an end by themselves, so that nothing of what they
        have begun is left.
        """
        return False

    def let_leave(self, worker: int) -> bool:
        """Does the same for one worker, which is to leave."""
        del worker
        return False

    def note_left(self, worker: int) -> None:
        """Takes note that a worker has left."""
        del worker

    def passes(self, num_workers: int, window: int) -> Iterator[Window]:
        """Yields for each pass over the data of an epoch what tells when it is over."""
        del num_workers
        yield Window(window)

    def is_made(self) -> bool:
        """Returns whether all workers have made their data, or were waited for."""
        return True

    @abc.abstractmethod
    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        """Yields the executions of one epoch, from a step on."""

    def due(
        self, size: int, args: tuple[Any, ...], cancelable: Cancelable
    ) -> tuple[int, tuple[Any, ...]]:
        """Returns how many steps a worker has data for, and their function's arguments.

        It is called on the thread of the worker, before the steps.
        """
        del cancelable
        return size, args

    def note_done(self, num_steps: int) -> bool:
        """Takes note that steps were made, on the thread of their worker.

        Returns whether more steps are to be made at once, as their batches have been
        read.
        """
        del num_steps
        return False

    # The functions of executions outlive the batches, so these two need none.

    @staticmethod
    @abc.abstractmethod
    def signature(spec: Any, size: int) -> tuple[Any, ...]:
        """Returns the specs of the arguments of a function of so many steps."""

    @staticmethod
    @abc.abstractmethod
    def take(spec: Any, size: int, *args: Any) -> list[Any]:
        """Returns, in the function, its batches."""


class SentBatches(Batches):
    """Batches that the coordinator reads and sends with each execution.

    Each is used exactly once, and one worker gets them in order.
    """

    def __init__(self, adapter: Adapter, goes_on: bool, argument: str = "x"):
        self.argument = argument
        self._adapter = adapter
        self._dataset = EndableDataset(adapter.dataset)
        self.element_spec = adapter.dataset.element_spec
        self._steps_of_epoch = adapter.steps_of_epoch
        self._goes_on = goes_on
        self._iterator: Any = None
        self._is_reading = self._has_read = False
        self.num_steps = adapter.steps_of_epoch or adapter.num_batches

    def begin_epoch(self, epoch: int, resume: bool) -> bool:
        """Begins an epoch if there is a batch; the first epoch finds that out later."""
        del epoch, resume
        return not self._has_read or self._has_batch()

    def first(self) -> Any:
        """Returns the first batch, and leaves it to be read again."""
        if not self._has_batch():
            raise ValueError(NO_BATCHES.format(self.argument))
        batch = next(self._iterator)
        self._iterator = itertools.chain([batch], self._iterator)
        return without_optionals(batch)

    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        if not self._has_batch():
            raise ValueError(NO_BATCHES.format(self.argument))
        limit, first = self._steps_of_epoch, first_step
        if first_step and is_shuffled(self._adapter.dataset):
            logging.warning(_OTHER_ORDER, first_step)
        next(itertools.islice(self._iterator, first_step, first_step), None)
        try:
            while limit is None or first < limit:
                size = sizes.next(None if limit is None else limit - first)
                batches = list(itertools.islice(self._iterator, size))
                if len(batches) == size:
                    yield Scheduled(size, (batches,))
                else:
                    yield from (Scheduled(1, ([batch],)) for batch in batches)
                first += len(batches)
                if len(batches) < size:
                    if limit is not None:
                        logging.warning(_RAN_OUT, self.argument, first, limit)
                    self.close()
                    break
        finally:
            if not self._goes_on:
                self.close()
            self.end_epochs()

    def end_epochs(self) -> None:
        """Ends the threads that read ahead."""
        if self._is_reading:
            self._is_reading = False
            self._adapter.end_epoch()

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator = None
            end_iterators([self._dataset])

    def _has_batch(self) -> bool:
        """Returns whether there is a batch; goes back to the first if all were read."""
        if not self._is_reading:
            self._is_reading = True
            self._adapter.begin_epoch()
        if self._iterator is not None and self._finds_batch():
            return True
        self.close()
        self._iterator = iter(self._dataset)
        return self._finds_batch()

    def _finds_batch(self) -> bool:
        for batch in self._iterator:
            self._iterator = itertools.chain([batch], self._iterator)
            self._has_read = True
            return True
        return False

    @staticmethod
    def signature(spec: Any, size: int) -> tuple[Any, ...]:
        """Returns the specs of the dataset, in which a batch's size may be unknown.

        The function must not be traced for each size: Keras weighs losses by the size
        of the batch if the trace knows it.
        """
        return ([spec] * size,)

    @staticmethod
    def take(spec: Any, size: int, *args: Any) -> list[Any]:
        del spec, size
        (batches,) = args
        return [without_optionals(batch) for batch in batches]


class WorkersBatches(Batches):
    """Batches that each worker reads by itself, without a break between epochs."""

    num_steps: int

    def __init__(self, datasets: WorkersDatasets, num_steps: int):
        self.element_spec = datasets.element_spec
        self._datasets = datasets
        self.num_steps = num_steps

    def begin_epoch(self, epoch: int, resume: bool) -> bool:
        del resume
        self._datasets.epoch = epoch
        return True

    def close(self) -> None:
        self._datasets.end_iterators()

    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        first = first_step
        while first < self.num_steps:
            size = sizes.next(self.num_steps - first)
            yield Scheduled(size, (self._datasets.iterator,))
            first += size

    def counts_items(self) -> bool:
        return bool(self._datasets.queues)

    def note_left(self, worker: int) -> None:
        self._datasets.let_leave(worker, is_gone=True)

    @staticmethod
    def signature(spec: Any, size: int) -> tuple[Any, ...]:
        del size
        return (tf.data.IteratorSpec(spec),)

    @staticmethod
    def take(spec: Any, size: int, *args: Any) -> list[Any]:
        del spec
        (iterator,) = args
        return [next(iterator) for _ in range(size)]


@dataclasses.dataclass
class _Place:
    """Where a worker is in its data."""

    iterator: Any
    number: int
    chunk: Any = None
    num_batches: int = 0
    num_done: int = 0


class WorkersPasses(Batches):
    """Batches that each worker reads to an end; an epoch is a pass over all of them.

    A worker reads a chunk of batches, which stays there, and tells their number. So it
    is known how many steps an execution makes before it is called, and one that runs
    again on the same worker has the same batches.

    If they come from work queues, an epoch is one of the queues', and the other workers
    read what a lost one had not finished in another pass.
    """

    num_steps = None

    def __init__(self, datasets: WorkersDatasets):
        self.element_spec = datasets.element_spec
        self._datasets = datasets
        self._queues = datasets.queues
        self._patience = _PATIENCE
        self._take: Any = None
        # Each worker's thread reads and writes the place of its own worker alone.
        self._places: dict[int, _Place] = {}
        self._number = 0
        self._absent: set[int] = set()

    def begin_epoch(self, epoch: int, resume: bool) -> bool:
        self._datasets.epoch = epoch
        if resume and not self._queues:
            logging.warning(_ALL_AGAIN)
        epochs = [queue.begin_epoch(resume) for queue in self._queues]
        return None not in epochs

    def passes(self, num_workers: int, window: int) -> Iterator[Window]:
        if self._take is None:
            function = tf.function(take_chunk, autograph=False)
            self._take = function.get_concrete_function(ITERATOR_SPEC)
        is_left = True
        while is_left:
            self._number += 1
            ends = Ends(num_workers, window, self._absent)
            yield ends
            self._absent = ends.lost
            if ends.lost:
                logging.warning(
                    "fit: %d of %d workers do not answer at the end of an epoch: %s. "
                    "It ends without what they had yet to read%s.",
                    len(ends.lost),
                    num_workers,
                    ", ".join(map(str, sorted(ends.lost))),
                    ", which others read" if self._queues else "",
                )
            is_left = self.has_left(bool(ends.lost))

    def counts_items(self) -> bool:
        return bool(self._queues)

    def let_end(self) -> bool:
        self._datasets.let_leave(*range(self._datasets.num_workers))
        return self.counts_items()

    def let_leave(self, worker: int) -> bool:
        self._datasets.let_leave(worker)
        return self.counts_items()

    def note_left(self, worker: int) -> None:
        self._datasets.let_leave(worker, is_gone=True)

    def is_made(self) -> bool:
        """Returns whether all workers have made their data, or were waited for.

        A worker that does not answer is waited for once.
        """
        if self._patience == 0 or is_made(self._datasets.iterator):
            return True
        self._patience -= 1
        return False

    def has_left(self, some_are_lost: bool) -> bool:
        """Returns whether another pass is needed to end the epoch."""
        left = False
        for queue in self._queues:
            stats = queue.stats()
            not_handed_out = stats["epoch"] <= stats["limit"]
            if stats["waiting_items"] or (
                some_are_lost and (stats["in_flight"] or not_handed_out)
            ):
                # This takes back what lost workers hold.
                queue.begin_epoch(resume=True)
                left = True
        return left

    def close(self) -> None:
        self._datasets.end_iterators()

    def end_epochs(self) -> None:
        for queue in self._queues:
            queue.end_epochs()

    def executions(self, sizes: Sizes, first_step: int = 0) -> Iterator[Scheduled]:
        del first_step
        while True:
            yield Scheduled(sizes.largest, (self._datasets.iterator,))

    def due(
        self, size: int, args: tuple[Any, ...], cancelable: Cancelable
    ) -> tuple[int, tuple[Any, ...]]:
        """Returns how many steps a worker has data for, and their function's arguments.

        It reads a chunk if none is left.
        """
        (iterator,) = args
        worker = worker_index()
        place = self._places.get(worker)
        if place is None or place.iterator is not iterator:
            # The worker began another life, with a dataset of its own.
            place = self._places[worker] = _Place(iterator, self._number - 1)
        while place.num_done == place.num_batches and place.number < self._number:
            place.num_batches = place.num_done = 0
            place.chunk, num_batches = cancelable(self._take)(iterator)
            place.num_batches = int(num_batches)
            # A worker that was not heard of in a pass has its end still before it.
            place.number += not place.num_batches
        num_left = place.num_batches - place.num_done
        num_steps = size if num_left >= size else min(num_left, 1)
        return num_steps, (place.chunk, tf.constant(place.num_done))

    def note_done(self, num_steps: int) -> bool:
        place = self._places[worker_index()]
        place.num_done += num_steps
        return place.num_done < place.num_batches

    @staticmethod
    def signature(spec: Any, size: int) -> tuple[Any, ...]:
        """Returns the specs of a chunk, and of a place in it."""
        del spec, size
        return (tf.TensorSpec([None], tf.variant), tf.TensorSpec([], tf.int32))

    @staticmethod
    def take(spec: Any, size: int, *args: Any) -> list[Any]:
        """Returns the batches in the chunk, from that place on."""
        chunk, first = args
        return [batch_of(chunk, first + i, spec) for i in range(size)]
