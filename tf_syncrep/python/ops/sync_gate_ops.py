"""The ops of the gate: the protocol of synchronous training, call by call.

The gate decides which worker may compute, whose gradient counts, and when a step is
over; docs/design.md tells its terms. It lives on the task on which `sync_gate` ran,
and the other ops go to it through its handle. All inputs and outputs are scalars
unless said otherwise.
"""

from __future__ import annotations

from typing import Any

from tf_syncrep.python.ops import op_library

#: In the place of a generation's number, an integer or a tensor: whichever there is.
ANY_GENERATION: Any = -1


def sync_gate(
    quorum,
    total,
    *,
    shared_name="",
    lease_secs=60.0,
    start_secs=600.0,
    updater_lease_secs=0.0,
    strict=True,
    spares=True,
    gathers=False,
    counted=False,
    name=None,
):
    """Makes, or finds by its shared name, the gate of one synchronous training.

    Args:
        quorum: gradients that make up an update, a Python integer of at least 1.
        total: workers that take part, those above the quorum being backups; a Python
            integer of at least 1.
        shared_name: the gate's name on its task. A name in use with another `strict`,
            `spares`, `gathers` or `updater_lease_secs` is an error; of a gate that is
            there, the other arguments change nothing, but `sync_gate_open` may.
        lease_secs: how long a worker may be silent, in seconds. Waiting is not
            silence. One that has come back from a longer silence may be silent for
            twice as long as that, twice `start_secs` at most.
        start_secs: the same before a worker's first gradient. Once as many workers have
            given theirs as compute it, it is four times the longest silence before one
            of those, if that is less, and `lease_secs` at least.
        updater_lease_secs: how long the updater may be silent before all waits fail;
            zero or less: for ever.
        strict: whether each live worker gives its share, ceil(quorum / live), and no
            more; otherwise whoever is fast gives more.
        spares: whether, if it is not strict, an idle worker gets a permit beside one
            that is overdue, and a push that takes much longer than others did voids its
            round.
        gathers: whether, if it is not strict, each worker gives its share and no more
            until all have been heard of, `lease_secs` from the opening at most.
        counted: whether it lives as long as its handle, and not as long as its task.
            Without a shared name it is then a new one each time.
        name: name of the operation.

    Returns:
        The handle, a resource tensor.

    Raises:
        tf.errors.InvalidArgumentError: an argument out of its range, or a gate of this
            name with another `strict` or `updater_lease_secs`.
    """
    return op_library.load().syncrep_sync_gate(
        quorum=quorum,
        total=total,
        shared_name=shared_name,
        lease_secs=lease_secs,
        start_secs=start_secs,
        updater_lease_secs=updater_lease_secs,
        strict=strict,
        spares=spares,
        gathers=gathers,
        counted=counted,
        name=name,
    )


def task_id(name=None):
    """Names the task that the op runs on, as the gate's worker.

    Args:
        name: name of the operation.

    Returns:
        device (string): job, replica and task; and incarnation (int64): the number
        that its CPU device drew when its server started.
    """
    return op_library.load().syncrep_task_id(name=name)


def sync_gate_open(
    handle, step, *, quorum=0, total=0, lease_secs=0.0, start_secs=0.0, name=None
):
    """Starts a generation: what the last one left is void.

    The waits of its updater end as Aborted. Workers that wait go on waiting, for a
    permit of this one.

    Args:
        handle: the gate, a resource tensor.
        step: the global step, int64.
        quorum: gradients that make up an update from now on, a Python integer. Zero,
            here and below: as before.
        total: workers that take part, a Python integer.
        lease_secs: how long a worker may be silent, in seconds.
        start_secs: the same before a worker's first gradient. Once as many workers have
            given theirs as compute it, it is four times the longest silence before one
            of those, if that is less, and `lease_secs` at least.
        name: name of the operation.

    Returns:
        The number of the new generation, int64.

    Raises:
        tf.errors.InvalidArgumentError: a negative lease.
    """
    return op_library.load().syncrep_sync_gate_open(
        handle,
        step,
        quorum=quorum,
        total=total,
        lease_secs=lease_secs,
        start_secs=start_secs,
        name=name,
    )


def sync_gate_add_passes(handle, num_passes, name=None):
    """Lays out passes with the present step: an acquire that finds one does not wait.

    Args:
        handle: the gate, a resource tensor.
        num_passes: how many, int64; none if negative.
        name: name of the operation.

    Returns:
        The operation.
    """
    return op_library.load().syncrep_sync_gate_add_passes(handle, num_passes, name=name)


def sync_gate_acquire(
    handle, device, incarnation, first=False, name=None, *, quorum=0, total=0
):
    """Waits until the round needs a gradient from this worker.

    To be run before the worker reads variables. A worker does one thing at a time: what
    it still held, from a step that was given up and is run again say, it gives up.

    Args:
        handle: the gate, a resource tensor.
        device: the worker's task, a string (see `task_id`), or any other name that
            tells it from the others.
        incarnation: its incarnation, int64. One that another has followed is refused.
        first: whether this is the start of a session: takes no pass, and succeeds on a
            closed gate; but a worker that took no part in what was closed, or has heard
            of its end, first waits `start_secs` for the next open.
        quorum: what the worker takes the quorum to be, a Python integer; zero: whatever
            it is. At the start of a session, a worker that finds the gate open with
            another waits `lease_secs` for a chief that agrees with it.
        total: the same for the number of workers.
        name: name of the operation.

    Returns:
        generation, round and step (int64): the first two are for the worker's next
        calls, the third is the global step of the round.

    Raises:
        tf.errors.OutOfRangeError: the gate is closed.
        tf.errors.AbortedError: another acquire of the same task, or another start of
            it, took this one's place.
        tf.errors.InvalidArgumentError: the gate is open with another quorum or total.
    """
    return op_library.load().syncrep_sync_gate_acquire(
        handle, device, incarnation, first=first, quorum=quorum, total=total, name=name
    )


def sync_gate_admit(
    handle, generation, round_number, device, incarnation, fit, name=None
):
    """Asks whether a worker may push the gradient that it computed.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as acquired.
        round_number: int64, as acquired.
        device: the worker's task, a string (see `task_id`).
        incarnation: its incarnation, int64.
        fit: bool, false if the worker itself rejects its gradient.
        name: name of the operation.

    Returns:
        Whether it may (bool). If not, the round is over or full, and nothing may be
        pushed.

    Raises:
        tf.errors.OutOfRangeError: the gate is closed.
    """
    return op_library.load().syncrep_sync_gate_admit(
        handle, generation, round_number, device, incarnation, fit, name=name
    )


def sync_gate_commit(handle, generation, round_number, device, incarnation, name=None):
    """Says that every push of an admitted gradient was acknowledged.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as acquired.
        round_number: int64, as acquired.
        device: the worker's task, a string (see `task_id`).
        incarnation: its incarnation, int64.
        name: name of the operation.

    Returns:
        Whether it counts (bool); not if its round was void by then.
    """
    return op_library.load().syncrep_sync_gate_commit(
        handle, generation, round_number, device, incarnation, name=name
    )


def sync_gate_abort(handle, generation, round_number, device, incarnation, name=None):
    """Gives up a permit, or an admitted gradient, which makes the round void.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as acquired.
        round_number: int64, as acquired.
        device: the worker's task, a string (see `task_id`).
        incarnation: its incarnation, int64.
        name: name of the operation.

    Returns:
        The operation.
    """
    return op_library.load().syncrep_sync_gate_abort(
        handle, generation, round_number, device, incarnation, name=name
    )


def sync_gate_leave(handle, device, incarnation, name=None):
    """Says that a worker takes no further part; others take over its share.

    Args:
        handle: the gate, a resource tensor.
        device: the worker's task, a string (see `task_id`).
        incarnation: its incarnation, int64.
        name: name of the operation.

    Returns:
        The operation.
    """
    return op_library.load().syncrep_sync_gate_leave(
        handle, device, incarnation, name=name
    )


def sync_gate_wait_quorum(handle, generation, timeout_secs=0.0, name=None):
    """Waits until the round has its quorum of committed gradients.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as opened.
        timeout_secs: a Python number; zero or less: none.
        name: name of the operation.

    Returns:
        round and num_gradients (int64): the full round, and how many gradients it has.

    Raises:
        tf.errors.OutOfRangeError: the gate is closed.
        tf.errors.DeadlineExceededError: no full round in this time.
        tf.errors.AbortedError: the generation is over.
    """
    return op_library.load().syncrep_sync_gate_wait_quorum(
        handle, generation, timeout_secs=timeout_secs, name=name
    )


def sync_gate_flush(handle, generation, name=None):
    """Ends a round that will not fill, at the end of training.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as opened.
        name: name of the operation.

    Returns:
        round and num_gradients (int64). With no gradients the round stays open.

    Raises:
        tf.errors.OutOfRangeError: the gate is closed.
        tf.errors.AbortedError: the generation is over.
    """
    return op_library.load().syncrep_sync_gate_flush(handle, generation, name=name)


def sync_gate_advance(handle, generation, round_number, step, name=None):
    """Ends a round whose gradients were applied, and opens the next.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as opened.
        round_number: the round that was applied, int64.
        step: the new global step, int64.
        name: name of the operation.

    Returns:
        Whether it did (bool): not if that was not the present round any more.

    Raises:
        tf.errors.FailedPreconditionError: the round is not full.
        tf.errors.AbortedError: the generation is over.
    """
    return op_library.load().syncrep_sync_gate_advance(
        handle, generation, round_number, step, name=name
    )


def sync_gate_drain(handle, generation, name=None):
    """Waits until no gradient is on its way and no full round is unapplied.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as opened.
        name: name of the operation.

    Returns:
        The operation.

    Raises:
        tf.errors.OutOfRangeError: the gate is closed.
        tf.errors.AbortedError: the generation is over.
    """
    return op_library.load().syncrep_sync_gate_drain(handle, generation, name=name)


def sync_gate_cancel_updater(
    handle, generation, device: Any = "", incarnation: Any = 0, name=None
):
    """Ends the updater's waits of a generation as Cancelled.

    A worker in whose process the updater failed would wait for updates that nobody
    makes. Where one is named, its acquires are cancelled, too, until an updater waits
    for a round again.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as opened.
        device: that worker's task, a string (see `task_id`); empty: there is none.
        incarnation: its incarnation, int64.
        name: name of the operation.

    Returns:
        The operation.
    """
    return op_library.load().syncrep_sync_gate_cancel_updater(
        handle, generation, device, incarnation, name=name
    )


def sync_gate_configure(handle, quorum, total, name=None):
    """Changes the quorum and the number of workers from the next round on.

    Args:
        handle: the gate, a resource tensor.
        quorum: gradients that make up an update, int64, at least 1.
        total: workers that take part, int64, at least 1.
        name: name of the operation.

    Returns:
        The operation.

    Raises:
        tf.errors.InvalidArgumentError: a number below 1.
    """
    return op_library.load().syncrep_sync_gate_configure(
        handle, quorum, total, name=name
    )


def sync_gate_close(handle, generation=ANY_GENERATION, name=None):
    """Ends all waits, present and future, as end of input (OutOfRange).

    Args:
        handle: the gate, a resource tensor.
        generation: int64, as opened: no effect in another one, so that a chief cannot
            end its successor's training. `ANY_GENERATION`: whichever there is.
        name: name of the operation.

    Returns:
        The operation.
    """
    return op_library.load().syncrep_sync_gate_close(handle, generation, name=name)


def sync_gate_fail(handle, code, message, generation=ANY_GENERATION, name=None):
    """Ends all waits, present and future, with an error.

    Args:
        handle: the gate, a resource tensor.
        code: a canonical status code in [1, 16], int32.
        message: the error's message, a string.
        generation: as for `sync_gate_close`.
        name: name of the operation.

    Returns:
        The operation.

    Raises:
        tf.errors.InvalidArgumentError: a code out of this range.
    """
    return op_library.load().syncrep_sync_gate_fail(
        handle, code, message, generation, name=name
    )


def sync_gate_stats(handle, name=None):
    """Reads the counters of a gate.

    Args:
        handle: the gate, a resource tensor.
        name: name of the operation.

    Returns:
        names (string) and values (int64), vectors: the gate's counters; devices
        (string), a vector: the workers' tasks; device_names (string), a vector, and
        device_values (int64), a matrix with a row for each task: their counters.
    """
    return op_library.load().syncrep_sync_gate_stats(handle, name=name)
