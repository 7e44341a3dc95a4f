"""Items of the data, each read once an epoch by one of several workers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.data import session_takes
from tf_syncrep.python.ops import sync_gate_ops, work_queue_ops
from tf_syncrep.python.sync.arguments import check_count, check_positive

# Streams of a worker's readers.
_streams = itertools.count()


# Where the waiting items begin in a queue's state, as the op saves it: pairs of an
# epoch and an item.
_ITEMS_OF_STATE = 12

# A list for each `queues_used` that is under way; tracing, which fills them, is done by
# one thread.
_collections: list[list[WorkQueue]] = []


@contextlib.contextmanager
def queues_used() -> Iterator[list[WorkQueue]]:
    """Collects the queues that datasets are made of while in it."""
    queues: list[WorkQueue] = []
    _collections.append(queues)
    try:
        yield queues
    finally:
        _collections.pop()


class WorkQueue:
    """Hands out files, or other items of the data, to whichever worker is free.

    Each item is read once an epoch, by one worker: a fast one reads more of them, and
    nobody has to know how many workers there are. What a worker had begun when it died
    is read again, as a whole, by another; what it had ended is not. The ledger is kept
    where all workers can ask it: under ParameterServerStrategy on the first parameter
    server. (Its counterpart in DeepRec is `WorkQueue`.)

    Made in the scope of the strategy. In a graph of `tf.compat.v1` it is made where
    `tf.compat.v1.train.replica_device_setter` is in force, and has a name; its readers
    begin once the queue runners are started, as MonitoredTrainingSession does.

    ```python
    queue = tfs.data.WorkQueue(tf.io.gfile.glob("logs/*.csv"), num_epochs=None)


    def dataset(context):
        lines = queue.dataset(tf.data.TextLineDataset, num_readers=4)
        return lines.map(parse).batch(512).prefetch(tf.data.AUTOTUNE)


    tfs.keras.fit(model, dataset, epochs=3)
    ```

    In `fit` without `steps_per_epoch` an epoch is one of the queue's. In a loop of your
    own `begin_epoch` has readers stop at the end of each; without it they read on.

    An item is ended when its reader asks for the next one: when all of it has gone into
    the dataset. Elements that then wait in buffers (`shuffle`, `prefetch`, a batch) die
    with a worker, and are not read again.

    So each item is read exactly once an epoch where no worker dies. Nobody waits for
    slow workers, except that at the end of the last epoch the others wait for the items
    that are still being read, which may come back.

    Args:
        items: what is to be read: file names, say, or anything that is a tensor with an
            item in each row; or how many items there are, which are then numbers; or a
            `range` of numbers. Of these two nothing is kept in memory.
        num_epochs: how often; None for again and again.
        shuffle: whether each epoch has an order of its own.
        seed: of these orders: the same seed, the same orders.
        lease_secs: a reader that takes longer for an item is taken for dead; choose
            more than the longest item takes. A worker that was started again is
            recognised at once.
        name: the queue's name where it lives, by which other processes find it, as long
            as that server lives; another training on the same servers needs another
            name. Graphs of `tf.compat.v1` need one. By default nobody else finds the
            queue, which lives as long as this object and the datasets made of it.

    Attributes:
        items: the items, an array; or a `range`, where that or a number was given.
        num_epochs: how often they are read; None for again and again.

    Raises:
        ValueError: no items, or an argument that is out of its range.
    """

    def __init__(
        self,
        items: Any,
        num_epochs: int | None = 1,
        shuffle: bool = False,
        seed: int = 0,
        lease_secs: float = 600.0,
        name: str | None = None,
    ):
        given = items
        if not isinstance(items, range):
            items = np.asarray(items)
            if items.ndim == 0 and items.dtype.kind not in "SU":
                items = range(check_count("items", items.item()))
        self.items: np.ndarray | range = items
        if getattr(items, "ndim", 1) == 0 or not len(items):
            raise ValueError(
                "items must be a number, or a sequence of at least one item. "
                f"Received: items={given!r}"
            )
        self.num_epochs: int | None = (
            None if num_epochs is None else check_count("num_epochs", num_epochs)
        )
        self._options = {
            "num_items": len(self.items),
            "num_epochs": self.num_epochs or 0,
            "shuffle": bool(shuffle),
            "seed": int(seed),
            "lease_secs": check_positive("lease_secs", lease_secs),
            "shared_name": name or "",
            "counted": name is None,
        }
        # Guards the handle while functions are traced, by several threads.
        self._lock = threading.Lock()
        self._eager_handle: Any = None  # a tensor, once the queue is made
        # In graphs of tf.compat.v1 only.
        self._ledger: session_takes.SessionLedger | None = None
        self._is_on_server = isinstance(
            tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy
        )
        server = "/job:ps/replica:0/task:0/device:CPU:0"
        self._device = server if self._is_on_server else "CPU:0"
        if not tf.compat.v1.executing_eagerly_outside_functions():
            if name is None:
                raise ValueError(
                    "In a graph of tf.compat.v1 a work queue needs a name, by which "
                    "all workers find it. Received: name=None"
                )
            self._device = session_takes.device_of_variables()
            with tf.device(self._device):
                self._ledger = session_takes.SessionLedger(self._handle())

    def dataset(
        self,
        read: Callable[[tf.Tensor], tf.data.Dataset] | None = None,
        num_readers: int = 1,
    ) -> tf.data.Dataset:
        """Makes the dataset of one worker: what is in the items that it gets.

        Under ParameterServerStrategy it is called on each worker: in the function that
        `tfs.keras.fit` or `create_per_worker_dataset` is given. Reading the dataset
        again from the beginning reads on in the queue.

        Args:
            read: makes a dataset of one item, a scalar or a row of `items`;
                `tf.data.TextLineDataset`, say. None for the items themselves.
            num_readers: how many items are read at once, side by side; their elements
                take turns.

        Returns:
            The dataset. It ends with the last epoch.

        Raises:
            ValueError: `num_readers` is no whole number of at least 1.
            RuntimeError: called on the coordinator.
        """
        num_readers = check_count("num_readers", num_readers)
        if self._is_on_server and tf.executing_eagerly():
            raise RuntimeError(
                "A work queue's dataset is made on the worker that reads it: call "
                "dataset() in the function that tfs.keras.fit or "
                "create_per_worker_dataset is given, and give that function."
            )
        # Not where the dataset is read, which tf.data does on a device of its own.
        worker = sync_gate_ops.task_id()
        streams = [next(_streams) for _ in range(num_readers)]
        read = read or tf.data.Dataset.from_tensors

        def take(stream: Any, last: Any) -> tuple[Any, Any]:
            with tf.device(self._device):
                ticket, _, item = work_queue_ops.work_queue_take(
                    self._handle(), *worker, stream, last
                )
            return ticket, item

        taken: session_takes.Take = take
        if self._ledger is not None:
            name = f"{self._options['shared_name']}_{streams[0]}"
            taken = session_takes.through_session(take, name, num_readers)

        def contents(stream: tf.Tensor) -> tf.data.Dataset:
            # No map(): tf.data would take items ahead for it, and so end earlier ones.
            return self._taken(taken, stream).flat_map(
                lambda _, item: read(self._item(item))
            )

        if num_readers == 1:
            elements = contents(tf.constant(streams[0], tf.int64))
        else:
            elements = tf.data.Dataset.from_tensor_slices(
                tf.constant(streams, tf.int64)
            ).interleave(contents, cycle_length=num_readers)
        # What is in a buffer when a worker dies counts as read, and is lost: so there
        # are no buffers but those that the user asks for.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        for queues in _collections:
            queues.append(self)
        return elements.with_options(options)

    def begin_epoch(self, resume: bool = False) -> int | None:
        """Lets readers have what is left of the next epoch, and nothing of later ones.

        Call it while nobody reads, and make the datasets' iterators anew after it: what
        readers had not ended is read again.

        Args:
            resume: go on with the epoch that was begun, if there is one, even if
                nothing of it is left; as after `restore`.

        Returns:
            The epoch, counted from 0; None if there is none.
        """
        if self.stats()["in_flight"]:
            self.restore(self.save())
        stats = self.stats()
        if resume and stats["limit"] != work_queue_ops.NO_LIMIT:
            return stats["limit"]
        waiting_items = self.save()[_ITEMS_OF_STATE:].tolist()
        epoch = min([stats["epoch"], *waiting_items[::2]])
        if epoch == self._options["num_epochs"] != 0:
            return None
        self._set_limit(epoch)
        return epoch

    def end_epochs(self) -> None:
        """Lets readers have all epochs, as before the first `begin_epoch`."""
        self._set_limit(work_queue_ops.NO_LIMIT)

    def stats(self, session: Any = None) -> dict[str, int]:
        """Reads the ledger.

        Args:
            session: the session, in graphs of `tf.compat.v1`.

        Returns:
            Counters by name: `epoch` and `position` of the item that comes next;
            `handed_out`, `done`, `in_flight`; `given_back` by the dead, of these
            `repeated` and `waiting_items`; `late` ends of items that had been given
            back; `waiting` readers at the end; `limit`, the epoch at whose end readers
            stop, or -1.
        """
        if self._ledger is not None:
            names, values = self._ledger.stats(_check_session(session))
        else:
            with tf.device(self._device):
                counted = work_queue_ops.work_queue_stats(self._handle())
            names, values = (x.numpy() for x in counted)
        return {
            name.decode(): int(value) for name, value in zip(names, values, strict=True)
        }

    def save(self, session: Any = None) -> np.ndarray:
        """Reads what `restore` needs: a checkpoint's part.

        Args:
            session: the session, in graphs of `tf.compat.v1`.

        Returns:
            A vector of int64, of a few numbers for each item that is being read. What
            is being read counts as not read.
        """
        if self._ledger is not None:
            return self._ledger.save(_check_session(session))
        with tf.device(self._device):
            return work_queue_ops.work_queue_save(self._handle()).numpy()

    def restore(self, state: np.ndarray | Sequence[int], session: Any = None) -> None:
        """Goes on where a queue of the same items, epochs and order was saved.

        Args:
            state: as `save` returned it.
            session: the session, in graphs of `tf.compat.v1`.

        Raises:
            tf.errors.InvalidArgumentError: a state of another queue, or none at all.
        """
        if self._ledger is not None:
            self._ledger.restore(_check_session(session), state)
            return
        with tf.device(self._device):
            work_queue_ops.work_queue_restore(
                self._handle(), tf.constant(state, tf.int64)
            )

    def _handle(self) -> Any:
        """Makes the queue once; its handle. In a graph of tf.compat.v1: finds it."""
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return work_queue_ops.work_queue(**self._options)
        with self._lock:
            if self._eager_handle is None:
                with tf.init_scope(), tf.device(self._device):
                    self._eager_handle = work_queue_ops.work_queue(**self._options)
            return self._eager_handle

    def _set_limit(self, epoch: int) -> None:
        if self._ledger is not None:
            raise RuntimeError(
                "In graphs of tf.compat.v1 readers have all of a queue's epochs: "
                "num_epochs says how many."
            )
        with tf.device(self._device):
            work_queue_ops.work_queue_limit(
                self._handle(), tf.constant(epoch, tf.int64)
            )

    def _item(self, number: tf.Tensor) -> tf.Tensor:
        """An item by its place; a range is made here, where it is read."""
        if isinstance(self.items, range):
            return self.items.start + self.items.step * number
        return tf.gather(self.items, number)

    def _taken(self, take: session_takes.Take, stream: Any) -> Any:
        """The tickets and items that a reader gets."""

        def next_one(last, _):
            ticket, item = take(stream, last)
            return ticket, (ticket, item)

        no_ticket = tf.constant(work_queue_ops.NO_TICKET, tf.int64)
        taken: Any = tf.data.Dataset.from_tensors(0).repeat().scan(no_ticket, next_one)
        # Not `!=`, which compares the objects in graphs of tf.compat.v1.
        return taken.take_while(lambda ticket, _: tf.not_equal(ticket, no_ticket))


def _check_session(session: Any) -> Any:
    if session is None:
        raise ValueError(
            "In a graph of tf.compat.v1 a work queue is asked by session=, a session "
            "of that graph. Received: session=None"
        )
    return session
