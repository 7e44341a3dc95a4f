"""The ops of the work queue: who reads which item of the data.

A queue hands out items, which are numbers from 0, each once an epoch, to readers of
workers. It is on the task on which `work_queue` ran, and the other ops find it by its
handle. An item is done when its reader asks for the next one. If a reader is dead,
because its worker was started again or its lease has ended, its item is handed out
again. The Docs of the ops in `cc/ops` say what they do and take.
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
    fingerprint=0,
    lease_secs=600.0,
    counted=False,
    name=None,
):
    """Makes a work queue, or finds it by its shared name: Syncrep>WorkQueue."""
    return op_library.load().syncrep_work_queue(
        num_items=num_items,
        num_epochs=num_epochs,
        shuffle=shuffle,
        seed=seed,
        fingerprint=fingerprint,
        lease_secs=lease_secs,
        shared_name=shared_name,
        counted=counted,
        name=name,
    )


def work_queue_take(handle, device, incarnation, stream, last, name=None):
    """Takes the next item; marks the last one as done: Syncrep>WorkQueueTake."""
    return op_library.load().syncrep_work_queue_take(
        handle, device, incarnation, stream, last, name=name
    )


def work_queue_limit(handle, epoch, name=None):
    """Sets the last epoch whose items the queue hands out: Syncrep>WorkQueueLimit."""
    return op_library.load().syncrep_work_queue_limit(handle, epoch, name=name)


def work_queue_stats(handle, name=None):
    """Reads the queue's counters: Syncrep>WorkQueueStats."""
    return op_library.load().syncrep_work_queue_stats(handle, name=name)


def work_queue_recent(handle, name=None):
    """Tells which items readers have, and had before: Syncrep>WorkQueueRecent."""
    return op_library.load().syncrep_work_queue_recent(handle, name=name)


def work_queue_save(handle, name=None):
    """Returns the state of a queue, for `work_queue_restore`: Syncrep>WorkQueueSave."""
    return op_library.load().syncrep_work_queue_save(handle, name=name)


def work_queue_restore(handle, state, name=None):
    """Continues from the state of a like queue: Syncrep>WorkQueueRestore."""
    return op_library.load().syncrep_work_queue_restore(handle, state, name=name)
