"""Iterators that end without holding up anything else."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

# Private: nothing public gives a thread an executor. Without one of its own, calls of
# other threads to the same task would come after its own.
from tensorflow.python.eager import context, executor  # pyright: ignore

# How long ends are waited for, which take some milliseconds if nothing is in the way.
_END_SECS = 1.0


class EndableDataset:
    """A dataset whose iterators can be ended, on the task where they are.

    Whoever drops the last reference to an iterator waits until what it reads with is
    gone, and that may take up to a minute: the thread that tunes the parallelism of
    tf.data is woken, but looks a moment too early whether it is to end, and sleeps on
    for a whole period (`Model::OptimizeLoop` of 2.15 to 2.22; a `CancellationManager`
    is cancelled only after it has called back). A coordinator waits with Python's lock
    held, and a worker under a lock that all calls to it need. So before, an op gives
    the iterator an empty dataset, and waits without these.
    """

    def __init__(self, dataset: tf.data.Dataset):
        """Makes the empty dataset, on the task where the other one is."""
        self._dataset = dataset
        self._empty = tf.data.experimental.to_variant(dataset.take(0))
        self._iterators: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._dataset)
        self._iterators.append(iterator)
        return iterator

    def start_end(self) -> threading.Thread:
        """Begins to end the iterators that there are, not those that come meanwhile.

        When the thread is over they have no more elements, and nothing reads ahead.
        """
        iterators, self._iterators = self._iterators, []
        thread = threading.Thread(
            target=_end,
            args=(self._empty, iterators),
            name="tf_syncrep_end",
            daemon=True,
        )
        thread.start()
        return thread


def end_iterators(datasets: Iterable[EndableDataset]) -> None:
    """Ends the iterators of datasets at once, and goes on if that takes too long.

    Those of a task that is lost have ended.
    """
    threads = [dataset.start_end() for dataset in datasets]
    end = time.monotonic() + _END_SECS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _end(empty: tf.Tensor, iterators: list[Any]) -> None:
    own = executor.new_executor(enable_async=False)
    with contextlib.suppress(tf.errors.OpError), context.executor_scope(own):
        while iterators:
            # Private: nothing public tells the resource of an iterator.
            resource = iterators.pop()._iterator_resource
            with tf.device(resource.device):
                tf.raw_ops.MakeIterator(dataset=empty, iterator=resource)
