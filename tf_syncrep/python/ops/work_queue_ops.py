"""The ops of the work queue: who reads which item of the data.

A queue hands out items, numbers from 0, each once an epoch, to readers of workers. It
lives on the task on which `work_queue` ran, and the other ops go to it through its
handle. An item is done when its reader asks for the next one; that of a reader which is
dead, since its worker began another life or its lease has ended, is handed out again.
"""

from __future__ import annotations

from tf_syncrep.python.ops import op_library

#: In the place of the last epoch whose items are handed out: all there are.
NO_LIMIT = -1
#: In the place of the ticket of the last item: the reader begins.
NO_TICKET = 0


def work_queue(
    num_items,
    *,
    shared_name="",
    num_epochs=1,
    shuffle=False,
    seed=0,
    lease_secs=600.0,
    counted=False,
    name=None,
):
    """Makes a queue, or finds it by its shared name.

    Args:
        num_items: how many items there are, a Python integer of at least 1.
        shared_name: the queue's name on its task. A name in use with other arguments
            is an error.
        num_epochs: how often each item is to be read; 0 for again and again.
        shuffle: whether each epoch has an order of its own.
        seed: of these orders, a Python integer.
        lease_secs: how long a reader may take for an item, in seconds.
        counted: whether it lives as long as its handle, and not as long as its task.
            Without a shared name it is then a new one each time.
        name: name of the operation.

    Returns:
        The handle, a resource tensor.

    Raises:
        tf.errors.InvalidArgumentError: an argument out of its range, or a queue of this
            name with others.
    """
    return op_library.load().syncrep_work_queue(
        num_items=num_items,
        num_epochs=num_epochs,
        shuffle=shuffle,
        seed=seed,
        lease_secs=lease_secs,
        shared_name=shared_name,
        counted=counted,
        name=name,
    )


def work_queue_take(handle, device, incarnation, stream, last, name=None):
    """Takes the next item, and says that the last one was read to its end.

    A reader gets what a call whose answer it never got was given. At the end of the
    last epoch the call waits for the end of what others read, which may come back.

    Args:
        handle: of the queue.
        device: string, the worker's task, as `sync_gate_ops.task_id` gives it.
        incarnation: int64, its life, likewise.
        stream: int64, which of the worker's readers this is.
        last: int64, the ticket of the item that was read, `NO_TICKET` when a reader
            begins: an item that its stream holds is then given back, to be read again.
        name: name of the operation.

    Returns:
        ticket: int64, names this taking of the item; 0: there is no item any more, or
        none before the limit.
        epoch: int64, the item's epoch, from 0.
        item: int64, the item.

    Raises:
        tf.errors.AbortedError: another life of the worker has asked since, or this
            reader has.
        tf.errors.CancelledError: the queue is gone.
    """
    return op_library.load().syncrep_work_queue_take(
        handle, device, incarnation, stream, last, name=name
    )


def work_queue_limit(handle, epoch, name=None):
    """Has the queue hand out no items of later epochs, until the limit is another one.

    Readers that come there end, as at the end of all, and do not wait for others.

    Args:
        handle: of the queue.
        epoch: int64, the last epoch; `NO_LIMIT` for none, as at first.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.InvalidArgumentError: an epoch that is none.
    """
    return op_library.load().syncrep_work_queue_limit(handle, epoch, name=name)


def work_queue_stats(handle, name=None):
    """Reads the queue's counters.

    Args:
        handle: of the queue.
        name: name of the operation.

    Returns:
        names: string of shape `[n]`.
        values: int64 of shape `[n]`. At any time `handed_out` is the sum of `done`,
        `in_flight` and `given_back`, and `given_back` that of `repeated` and
        `waiting_items`.
    """
    return op_library.load().syncrep_work_queue_stats(handle, name=name)


def work_queue_save(handle, name=None):
    """Reads what `work_queue_restore` needs.

    Args:
        handle: of the queue.
        name: name of the operation.

    Returns:
        int64 of shape `[n]`: what is being read counts as given back.
    """
    return op_library.load().syncrep_work_queue_save(handle, name=name)


def work_queue_restore(handle, state, name=None):
    """Goes on where a queue of the same items, epochs and order was saved.

    Args:
        handle: of the queue.
        state: as `work_queue_save` gave it.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.InvalidArgumentError: a state of another queue, or none; the queue
            stays as it was.
    """
    return op_library.load().syncrep_work_queue_restore(handle, state, name=name)
