"""The ops of the work queue: who reads which item of the data.

A queue hands out items, which are numbers from 0, each once an epoch, to readers of
workers. It is on the task on which `work_queue` ran, and the other ops find it by its
handle. An item is done when its reader asks for the next one. If a reader is dead,
because its worker was started again or its lease has ended, its item is handed out
again.
"""

from __future__ import annotations

from tf_syncrep.python.ops import op_library

#: No limit to the epochs whose items are handed out.
NO_LIMIT = -1
#: The ticket of a reader that begins.
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
        shared_name: the queue's name on its task. It is an error if a queue of this
            name has other arguments.
        num_epochs: how often each item is read; 0 for again and again.
        shuffle: whether each epoch has an order of its own.
        seed: the seed of these orders, a Python integer.
        lease_secs: how long a reader may take for an item, in seconds.
        counted: whether it lives as long as its handle, instead of as long as its task.
            Without a shared name each call then makes a new one.
        name: name of the operation.

    Returns:
        The handle, a resource tensor.

    Raises:
        tf.errors.InvalidArgumentError: an argument is out of range, or a queue of this
            name has other arguments.
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
    """Takes the next item, and notes that the last one was read to its end.

    If the answer to a reader's call was lost, the reader gets the same item again. At
    the end of the last epoch the call waits until others have read their items, which
    may come back.

    Args:
        handle: handle of the queue.
        device: string, the worker's task, as `sync_gate_ops.task_id` returns it.
        incarnation: int64, its incarnation, likewise.
        stream: int64, which of the worker's readers this is.
        last: int64, the ticket of the item that was read, or `NO_TICKET` for a reader
            that begins: if its stream holds an item, that is given back, to be read
            again.
        name: name of the operation.

    Returns:
        ticket: int64, the ticket of the item; 0 if there is no item any more, or none
            before the limit.
        epoch: int64, the item's epoch, from 0.
        item: int64, the item.

    Raises:
        tf.errors.AbortedError: another incarnation of the worker, or the reader itself,
            has made a newer call.
        tf.errors.CancelledError: the queue is gone.
    """
    return op_library.load().syncrep_work_queue_take(
        handle, device, incarnation, stream, last, name=name
    )


def work_queue_limit(handle, epoch, name=None):
    """Sets the last epoch whose items the queue hands out, until the limit changes.

    Readers that get there end, as at the end of the last epoch, but without waiting.

    Args:
        handle: handle of the queue.
        epoch: int64, the last epoch, or `NO_LIMIT`, as at first.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.InvalidArgumentError: the epoch is negative, and not `NO_LIMIT`.
    """
    return op_library.load().syncrep_work_queue_limit(handle, epoch, name=name)


def work_queue_stats(handle, name=None):
    """Reads the queue's counters.

    Args:
        handle: handle of the queue.
        name: name of the operation.

    Returns:
        names: string of shape `[n]`.
        values: int64 of shape `[n]`. At any time `handed_out` is the sum of `done`,
        `in_flight` and `given_back`, and `given_back` that of `repeated` and
        `waiting_items`.
    """
    return op_library.load().syncrep_work_queue_stats(handle, name=name)


def work_queue_save(handle, name=None):
    """Returns the state of a queue, for `work_queue_restore`.

    Args:
        handle: handle of the queue.
        name: name of the operation.

    Returns:
        int64 of shape `[n]`. Items that are being read count as given back.
    """
    return op_library.load().syncrep_work_queue_save(handle, name=name)


def work_queue_restore(handle, state, name=None):
    """Continues from the state of a queue with the same items, epochs and order.

    Args:
        handle: handle of the queue.
        state: the state that `work_queue_save` returned.
        name: name of the operation.

    Returns:
        The operation in a graph, None when executing eagerly.

    Raises:
        tf.errors.InvalidArgumentError: the state belongs to another queue, or is no
            state; the queue is unchanged.
    """
    return op_library.load().syncrep_work_queue_restore(handle, state, name=name)
