"""Items of the data, each read once an epoch by one of several workers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.arguments import check_count, check_positive, check_whole
from tf_syncrep.python.data import session_takes
from tf_syncrep.python.data.items import as_items, fingerprint
from tf_syncrep.python.ops import sync_gate_ops, work_queue_ops

# Numbers of the streams, which are a worker's readers.
_streams = itertools.count()


# One list for each `queues_used` that is open. Tracing, which fills them, happens on
# one thread.
_collections: list[list[WorkQueue]] = []


@contextlib.contextmanager
def queues_used() -> Iterator[list[WorkQueue]]:
    """Collects the queues of which datasets are made within its context."""
    queues: list[WorkQueue] = []
    _collections.append(queues)
    try:
        yield queues
    finally:
        _collections.pop()


# After so many numbers a state has pairs: the epoch and the number of each item that
# waits.
_ITEMS_OF_STATE = 13
# An error names at most so many items.
_NAMED_ITEMS = 16


@contextlib.contextmanager
def naming_items() -> Iterator[None]:
    """Says which items were being read when an op fails within its context.

    TensorFlow's error of a line that cannot be parsed names neither the file nor the
    place in it. The queues are those of which datasets are made within the context.
    """
    with queues_used() as queues:
        try:
            yield
        except tf.errors.OpError:
            for queue in {id(queue): queue for queue in queues}.values():
                # The server with the ledger may be what was lost.
                with contextlib.suppress(tf.errors.OpError):
                    queue.say_recent_items()
            raise


class WorkQueue:
    """Hands out files, or other items of the data, to whichever worker is free.

    Each item is read once an epoch, by one worker: a fast one reads more of them, and
    nobody has to know how many workers there are. If a worker dies, another one reads
    the items that it had begun but not finished, from their beginnings. The ledger is
    kept where all workers can ask it: under ParameterServerStrategy on the first
    parameter server. (Its counterpart in DeepRec is `WorkQueue`.)

    Make it in the scope of the strategy. In a graph of `tf.compat.v1` make it where
    `tf.compat.v1.train.replica_device_setter` is in force, and give it a name; its
    readers begin when the queue runners start, as MonitoredTrainingSession starts them.

    ```python
    files = sorted(tf.io.gfile.glob("logs/*.csv"))
    queue = tfs.data.WorkQueue(files, num_epochs=None)


    def dataset(context):
        lines = queue.dataset(tf.data.TextLineDataset, num_readers=4)
        return lines.map(parse).batch(512).prefetch(tf.data.AUTOTUNE)


    tfs.keras.fit(model, dataset, epochs=3)
    ```

    In `fit` without `steps_per_epoch` an epoch is one of the queue's. In your own loop
    `begin_epoch` lets readers stop at the end of each epoch; without it they read on.

    An item is finished when its reader asks for the next one, which is when all of it
    has gone into the dataset. Elements that then wait in buffers (`shuffle`,
    `prefetch`, a batch) are lost if the worker dies, or if `restore` continues from a
    state that was saved at that moment, and are not read again.

    So if no worker dies, each item is read exactly once an epoch, unless workers wait
    for each other, as docs/data.md says. Nobody waits for slow workers, except at the
    end of the last epoch: there the others wait for the items that are still being
    read, since these may come back.

    Args:
        items: the items to read: file names or paths, say, or anything that is a tensor
            with an item in each row; or the number of items, which are then the numbers
            from 0; or a `range` of numbers. Numbers and ranges take no memory. All that
            find a queue by its name must give the same items in the same order, so sort
            what lists a folder.
        num_epochs: how often each item is read; None for again and again.
        shuffle: whether each epoch has an order of its own.
        seed: the seed of these orders.
        lease_secs: how long a reader may take for an item before it is taken for dead;
            choose more than the longest item takes. A restarted worker is recognised at
            once.
        name: the name under which other processes find the queue. It is taken as long
            as the server lives, so another training on the same servers needs another
            name. Graphs of `tf.compat.v1` need a name. Without one nobody else finds
            the queue, which then lives as long as this object and its datasets.

    Attributes:
        items: the items, an array; or a `range`, if a range or a number was given.
        num_epochs: how often they are read; None for again and again.

    Raises:
        ValueError: there are no items, or other things than numbers, strings and paths,
            or an argument is out of range.
        tf.errors.InvalidArgumentError: there is a queue of this name with other items
            or other arguments.
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
        self.items: np.ndarray | range = as_items(items)
        self.num_epochs: int | None = (
            None if num_epochs is None else check_count("num_epochs", num_epochs)
        )
        self._options = {
            "num_items": len(self.items),
            "fingerprint": fingerprint(self.items),
            "num_epochs": self.num_epochs or 0,
            "shuffle": bool(shuffle),
            "seed": check_whole("seed", seed),
            "lease_secs": check_positive("lease_secs", lease_secs),
            "shared_name": name or "",
            "counted": name is None,
        }
        # Guards the handle while several threads trace functions.
        self._lock = threading.Lock()
        self._eager_handle: Any = None  # a tensor, once the queue is made
        # In graphs of tf.compat.v1 only.
        self._ledger: dict[str, tuple[Any, list[Any]]] | None = None
        self._has_told_of_cuts = False
        self._is_on_server = isinstance(
            tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy
        )
        server = "/job:ps/replica:0/task:0/device:CPU:0"
        self._device = server if self._is_on_server else "CPU:0"
        if not tf.compat.v1.executing_eagerly_outside_functions():
            if name is None:
                raise ValueError(
                    "In a graph of tf.compat.v1 a work queue needs a name, so that "
                    "all workers find it. Received: name=None"
                )
            self._device = session_takes.device_of_variables()
            with tf.device(self._device):
                self._ledger = session_takes.ledger_ops(self._handle())

    def dataset(
        self,
        read: Callable[[tf.Tensor], tf.data.Dataset] | None = None,
        num_readers: int = 1,
    ) -> tf.data.Dataset:
        """Makes the dataset of one worker, with the contents of the items that it gets.

        Under ParameterServerStrategy it must be called on each worker: in the function
        that you give to `tfs.keras.fit` or `create_per_worker_dataset`. If the dataset
        is read again from its beginning, it continues with the queue's next items.

        Args:
            read: makes a dataset of one item, a scalar or a row of `items`; for example
                `tf.data.TextLineDataset`. None for the items themselves.
            num_readers: how many items are read at the same time; elements are taken
                from them in turn.

        Returns:
            The dataset. It ends with the last epoch.

        Raises:
            ValueError: `num_readers` is not a whole number of at least 1.
            RuntimeError: it was called on the coordinator.
        """
        num_readers = check_count("num_readers", num_readers)
        if self._is_on_server and tf.executing_eagerly():
            raise RuntimeError(
                "A work queue's dataset is made on the worker that reads it: call "
                "dataset() in the function that tfs.keras.fit or "
                "create_per_worker_dataset is given, and give that function."
            )
        # It is asked here, since tf.data reads the dataset on a device of its own.
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
            # A map() would take items ahead of time, and so finish earlier ones too
            # early.
            return self._taken(taken, stream).flat_map(
                lambda _, item: read(self._item(item))
            )

        if num_readers == 1:
            elements = contents(tf.constant(streams[0], tf.int64))
        else:
            elements = tf.data.Dataset.from_tensor_slices(
                tf.constant(streams, tf.int64)
            ).interleave(contents, cycle_length=num_readers)
        # What is in a buffer when a worker dies counts as read, and is lost. So there
        # are no buffers except those that the user adds.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        for queues in _collections:
            queues.append(self)
        return elements.with_options(options)

    def begin_epoch(self, resume: bool = False) -> int | None:
        """Lets readers read the rest of the next epoch, but nothing of later ones.

        Call it while nobody reads, and make new iterators of the datasets afterwards:
        items that readers had not finished are read again.

        Args:
            resume: continue the epoch that was begun, if there is one, even if nothing
                of it is left. Use it after `restore`.

        Returns:
            The epoch, counted from 0; None if there is none.
        """
        if self.stats()["in_flight"]:
            self.restore(self.save())
        stats = self.stats()
        if resume and stats["limit"] != work_queue_ops.NO_LIMIT:
            return stats["limit"]
        waiting = self.save()[_ITEMS_OF_STATE::2].tolist()
        epoch = min([stats["epoch"], *waiting])
        if epoch == self._options["num_epochs"] != 0:
            return None
        if epoch == stats["limit"] and not self._has_told_of_cuts:
            self._has_told_of_cuts = True
            num_items = len(self.items)
            not_begun = num_items - stats["position"] if epoch == stats["epoch"] else 0
            logging.warning(
                "A WorkQueue goes on with epoch %d, of which %d of %d items are left: "
                "readers ended before they did. If that was a take() on its dataset, "
                "leave it out; steps_per_epoch= of `fit` makes epochs of so many "
                "batches.",
                epoch,
                not_begun + waiting.count(epoch),
                num_items,
            )
        self._set_limit(epoch)
        return epoch

    def end_epochs(self) -> None:
        """Lets readers read all epochs, as before the first `begin_epoch`."""
        self._set_limit(work_queue_ops.NO_LIMIT)

    def let_leave(self, device: str, is_gone: bool) -> None:
        """Gives a worker no more items, until it is started again or an epoch begins.

        Its readers end when they have read those that they hold.

        Args:
            device: the worker's task, as "/job:worker/replica:0/task:1".
            is_gone: whether others read what the worker had not finished.
        """
        self._call("leave", None, tf.constant(device), tf.constant(is_gone))

    def stats(self, session: Any = None) -> dict[str, int]:
        """Reads the ledger.

        Args:
            session: the session, in graphs of `tf.compat.v1`.

        Returns:
            Counters by name: `epoch` and `position` of the next item; `handed_out`,
            `done` and `in_flight` items; items `given_back` by dead readers, and among
            these `repeated` and `waiting_items`; `late`, ends of items that had been
            given back; `waiting` readers at the end; and `limit`, the epoch at whose
            end readers stop, or -1.
        """
        names, values = self._call("stats", session)
        return {
            name.decode(): int(value) for name, value in zip(names, values, strict=True)
        }

    def recent_items(self, session: Any = None) -> list[Any]:
        """Returns the items that readers have, and those that they had before.

        If reading fails, as at a line that cannot be parsed, the reason is in one of
        them, unless a buffer (`prefetch`, a large batch) has read on far beyond it.

        Args:
            session: the session, in graphs of `tf.compat.v1`.

        Returns:
            Elements of `items`, in the queue's order.
        """
        numbers = self._call("recent", session)
        return [self.items[number] for number in sorted({*numbers.tolist()})]

    def say_recent_items(self) -> None:
        """Logs which items readers have, and had before, if any."""
        if items := self.recent_items():
            more = len(items) - _NAMED_ITEMS
            logging.error(
                "When this failed, readers of a WorkQueue were reading, or had just "
                "read: %s%s.",
                ", ".join(map(repr, items[:_NAMED_ITEMS])),
                f" and {more} more" if more > 0 else "",
            )

    def save(self, session: Any = None) -> np.ndarray:
        """Returns the state of the queue, for a checkpoint and `restore`.

        Args:
            session: the session, in graphs of `tf.compat.v1`.

        Returns:
            An int64 vector with a few numbers for each item that is being read. These
            items count as not read.
        """
        return self._call("save", session)

    def restore(self, state: np.ndarray | Sequence[int], session: Any = None) -> None:
        """Continues from the state of a queue with the same items, epochs and order.

        Args:
            state: the state that `save` returned.
            session: the session, in graphs of `tf.compat.v1`.

        Raises:
            tf.errors.InvalidArgumentError: `state` belongs to another queue, or is no
                state.
        """
        self._call("restore", session, state)

    def _handle(self) -> Any:
        """Returns the handle of the queue, made once, or found by name in v1 graphs."""
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
        self._call("limit", None, epoch)

    def _call(self, name: str, session: Any, *inputs: Any) -> Any:
        """Runs an op of the ledger; returns what it does, as arrays."""
        if self._ledger is not None:
            if session is None:
                raise ValueError(
                    "In a graph of tf.compat.v1 a work queue needs session=, a session "
                    "of that graph. Received: session=None"
                )
            fetched, fed = self._ledger[name]
            return session.run(fetched, dict(zip(fed, inputs, strict=True)))
        op = getattr(work_queue_ops, f"work_queue_{name}")
        with tf.device(self._device):
            tensors = (
                x if isinstance(x, tf.Tensor) else tf.constant(x, tf.int64)
                for x in inputs
            )
            found = op(self._handle(), *tensors)
        if found is None:  # the op has no outputs
            return None
        return tf.nest.map_structure(lambda x: x.numpy(), found)

    def _item(self, number: tf.Tensor) -> tf.Tensor:
        """Returns an item by its number; those of a range are computed by readers."""
        if isinstance(self.items, range):
            return self.items.start + self.items.step * number
        return tf.gather(self.items, number)

    def _taken(self, take: session_takes.Take, stream: Any) -> Any:
        """Returns a dataset of the tickets and items that a reader gets."""

        def next_one(last, _):
            ticket, item = take(stream, last)
            return ticket, (ticket, item)

        no_ticket = tf.constant(work_queue_ops.NO_TICKET, tf.int64)
        taken: Any = tf.data.Dataset.from_tensors(0).repeat().scan(no_ticket, next_one)
        # `!=` would compare the objects in graphs of tf.compat.v1.
        return taken.take_while(lambda ticket, _: tf.not_equal(ticket, no_ticket))
