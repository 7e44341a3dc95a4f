"""The ops of the gate: the protocol of synchronous training, call by call.

The gate decides which worker may compute, whose gradients count, and when a step is
over; docs/glossary.md explains its terms. It is on the task on which `sync_gate` ran,
and the other ops find it by its handle. All inputs and outputs are scalars unless said
otherwise.
"""

from __future__ import annotations

from typing import Any

from tf_syncrep.python.ops import op_library

#: Stands for the number of the present generation, an integer or a tensor.
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
        quorum: how many gradients make up an update, a Python integer of at least 1.
        total: how many workers take part; those above the quorum are backups. A Python
            integer of at least 1.
        shared_name: the gate's name on its task. It is an error if a gate of this name
            has another `strict`, `spares`, `gathers` or `updater_lease_secs`. The other
            arguments do not change an existing gate, but `sync_gate_open` may.
        lease_secs: how long a worker may be silent, in seconds. Waiting is not silence.
            A worker that has come back from a longer silence may be silent for twice as
            long as that, but at most for twice `start_secs`.
        start_secs: the same before a worker's first gradient. Once as many workers have
            given their first gradient as are computing theirs, it is four times the
            longest of those first steps, but no less than `lease_secs` and no more than
            `start_secs`.
        updater_lease_secs: how long the updater may be silent before all waits fail;
            zero or less means for ever.
        strict: whether each live worker gives its share, ceil(quorum / live), and no
            more; otherwise fast workers give more.
        spares: whether, if not `strict`, an idle worker gets a spare beside a permit
            that is overdue, and a push that takes much longer than others voids its
            round.
        gathers: whether, if not `strict`, each worker gives its share and no more until
            all workers have been heard of, for at most `lease_secs` from the opening.
        counted: whether it lives as long as its handle, instead of as long as its task.
            Without a shared name each call then makes a new one.
        name: name of the operation.

    Returns:
        The handle, a resource tensor.

    Raises:
        tf.errors.InvalidArgumentError: an argument is out of range, or a gate of this
            name has another `strict` or `updater_lease_secs`.
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
    """Returns the name by which the gate knows the task that the op runs on.

    Args:
        name: name of the operation.

    Returns:
        device (string): job, replica and task; and incarnation (int64): the number that
        the task's CPU device drew when its server started.
    """
    return op_library.load().syncrep_task_id(name=name)


def sync_gate_open(
    handle, step, *, quorum=0, total=0, lease_secs=0.0, start_secs=0.0, name=None
):
    """Starts a generation: what the last one left is void.

    The waits of its updater end as Aborted. Workers that wait go on waiting, for a
    permit of the new generation.

    Args:
        handle: the gate, a resource tensor.
        step: the global step, int64.
        quorum: how many gradients make up an update from now on, a Python integer.
            Zero, here and below, leaves the value as it was.
        total: how many workers take part, a Python integer.
        lease_secs: how long a worker may be silent, in seconds.
        start_secs: the same before a worker's first gradient; see `sync_gate`.
        name: name of the operation.

    Returns:
        The number of the new generation, int64.

    Raises:
        tf.errors.InvalidArgumentError: a lease is negative.
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
    """Adds passes with the present step: an acquire that finds a pass does not wait.

    Args:
        handle: the gate, a resource tensor.
        num_passes: how many passes, int64; none if negative.
        name: name of the operation.

    Returns:
        The operation.
    """
    return op_library.load().syncrep_sync_gate_add_passes(handle, num_passes, name=name)


def sync_gate_acquire(
    handle, device, incarnation, first=False, name=None, *, quorum=0, total=0
):
    """Waits until the round needs a gradient from this worker.

    It runs before the worker reads variables. A worker does one thing at a time: it
    gives up what it still holds, for example from a step that was given up and is run
    again.

    Args:
        handle: the gate, a resource tensor.
        device: the worker's task, a string (see `task_id`), or any other name that no
            other worker has.
        incarnation: its incarnation, int64. It is refused if another one has followed
            it.
        first: whether this is the start of a session. Then the call takes no pass, and
            succeeds on a closed gate. But a worker that took no part in the closed
            training, or has heard of its end, first waits `start_secs` for the next
            open.
        quorum: the quorum that the worker expects, a Python integer, or zero for any.
            If a worker at the start of a session finds the gate open with another one,
            it waits `lease_secs` for a chief that opens it with this one.
        total: the number of workers that the worker expects, likewise.
        name: name of the operation.

    Returns:
        generation, round and step (int64). The first two are for the worker's next
        calls, and the third is the global step of the round.

    Raises:
        tf.errors.OutOfRangeError: the gate is closed.
        tf.errors.AbortedError: another acquire of the same task, or another incarnation
            of it, took this one's place.
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
        generation: int64, the generation of the permit.
        round_number: int64, the round of the permit.
        device: the worker's task, a string (see `task_id`).
        incarnation: its incarnation, int64.
        fit: bool, false if the worker itself rejects its gradient.
        name: name of the operation.

    Returns:
        Whether it may (bool). If not, the round is over or full, and the gradient must
        not be pushed.

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
        generation: int64, the generation of the permit.
        round_number: int64, the round of the permit.
        device: the worker's task, a string (see `task_id`).
        incarnation: its incarnation, int64.
        name: name of the operation.

    Returns:
        Whether it counts (bool). It does not if its round was void by then.
    """
    return op_library.load().syncrep_sync_gate_commit(
        handle, generation, round_number, device, incarnation, name=name
    )


def sync_gate_abort(handle, generation, round_number, device, incarnation, name=None):
    """Gives up a permit, or an admitted gradient, which makes the round void.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, the generation of the permit.
        round_number: int64, the round of the permit.
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
        generation: int64, the generation that `sync_gate_open` returned.
        timeout_secs: the time-out, a Python number; there is none if it is zero or
            less.
        name: name of the operation.

    Returns:
        round and num_gradients (int64): the full round, and how many gradients it has.

    Raises:
        tf.errors.OutOfRangeError: the gate is closed.
        tf.errors.DeadlineExceededError: there was no full round in this time.
        tf.errors.AbortedError: the generation is over.
    """
    return op_library.load().syncrep_sync_gate_wait_quorum(
        handle, generation, timeout_secs=timeout_secs, name=name
    )


def sync_gate_flush(handle, generation, name=None):
    """Ends a round that will not fill, at the end of training.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, the generation that `sync_gate_open` returned.
        name: name of the operation.

    Returns:
        round and num_gradients (int64). Without gradients the round stays open.

    Raises:
        tf.errors.OutOfRangeError: the gate is closed.
        tf.errors.AbortedError: the generation is over.
    """
    return op_library.load().syncrep_sync_gate_flush(handle, generation, name=name)


def sync_gate_advance(handle, generation, round_number, step, name=None):
    """Ends a round whose gradients were applied, and opens the next.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, the generation that `sync_gate_open` returned.
        round_number: the round that was applied, int64.
        step: the new global step, int64.
        name: name of the operation.

    Returns:
        Whether it did (bool). It does not if that is not the present round any more.

    Raises:
        tf.errors.FailedPreconditionError: the round is not full.
        tf.errors.AbortedError: the generation is over.
    """
    return op_library.load().syncrep_sync_gate_advance(
        handle, generation, round_number, step, name=name
    )


def sync_gate_drain(handle, generation, name=None):
    """Waits until no gradient is in flight and no full round waits for its update.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, the generation that `sync_gate_open` returned.
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
    makes. If one is named, its acquires are cancelled as well, until an updater waits
    for a round again.

    Args:
        handle: the gate, a resource tensor.
        generation: int64, the generation that `sync_gate_open` returned.
        device: that worker's task, a string (see `task_id`); empty if there is none.
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
        quorum: how many gradients make up an update, int64, at least 1.
        total: how many workers take part, int64, at least 1.
        name: name of the operation.

    Returns:
        The operation.

    Raises:
        tf.errors.InvalidArgumentError: a number is below 1.
    """
    return op_library.load().syncrep_sync_gate_configure(
        handle, quorum, total, name=name
    )


def sync_gate_close(handle, generation=ANY_GENERATION, name=None):
    """Ends all waits, present and future, as end of input (OutOfRange).

    Args:
        handle: the gate, a resource tensor.
        generation: int64, the generation that `sync_gate_open` returned, or
            `ANY_GENERATION` for the present one. There is no effect in another
            generation, so that a chief cannot end its successor's training.
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
        generation: see `sync_gate_close`.
        name: name of the operation.

    Returns:
        The operation.

    Raises:
        tf.errors.InvalidArgumentError: the code is out of this range.
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
