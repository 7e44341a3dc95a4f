"""The ops of the gate: the protocol of synchronous training, call by call.

The gate decides which worker may compute, whose gradients count, and when a step is
over; docs/glossary.md explains its terms. It is on the task on which `sync_gate` ran,
and the other ops find it by its handle. All inputs and outputs are scalars but those of
`sync_gate_stats`. The Docs of the ops in `cc/ops` say what they do and take.
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
    """Makes or finds the gate of one synchronous training: Syncrep>SyncGate."""
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
    """Returns the name by which the gate knows this task: Syncrep>TaskId."""
    return op_library.load().syncrep_task_id(name=name)


def sync_gate_open(
    handle, step, *, quorum=0, total=0, lease_secs=0.0, start_secs=0.0, name=None
):
    """Starts a generation: Syncrep>SyncGateOpen."""
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
    """Adds passes with the present step: Syncrep>SyncGateAddPasses."""
    return op_library.load().syncrep_sync_gate_add_passes(handle, num_passes, name=name)


def sync_gate_acquire(
    handle, device, incarnation, first=False, name=None, *, quorum=0, total=0
):
    """Waits until the round needs this worker's gradient: Syncrep>SyncGateAcquire."""
    return op_library.load().syncrep_sync_gate_acquire(
        handle, device, incarnation, first=first, quorum=quorum, total=total, name=name
    )


def sync_gate_admit(
    handle, generation, round_number, device, incarnation, fit, name=None
):
    """Asks whether a worker may push its gradient: Syncrep>SyncGateAdmit."""
    return op_library.load().syncrep_sync_gate_admit(
        handle, generation, round_number, device, incarnation, fit, name=name
    )


def sync_gate_commit(handle, generation, round_number, device, incarnation, name=None):
    """Says that every push of a gradient was acknowledged: Syncrep>SyncGateCommit."""
    return op_library.load().syncrep_sync_gate_commit(
        handle, generation, round_number, device, incarnation, name=name
    )


def sync_gate_abort(handle, generation, round_number, device, incarnation, name=None):
    """Gives up a permit, or an admitted gradient: Syncrep>SyncGateAbort."""
    return op_library.load().syncrep_sync_gate_abort(
        handle, generation, round_number, device, incarnation, name=name
    )


def sync_gate_leave(handle, device, incarnation, name=None):
    """Says that a worker takes no further part: Syncrep>SyncGateLeave."""
    return op_library.load().syncrep_sync_gate_leave(
        handle, device, incarnation, name=name
    )


def sync_gate_wait_quorum(handle, generation, timeout_secs=0.0, name=None):
    """Waits until the round has its quorum: Syncrep>SyncGateWaitQuorum."""
    return op_library.load().syncrep_sync_gate_wait_quorum(
        handle, generation, timeout_secs=timeout_secs, name=name
    )


def sync_gate_flush(handle, generation, name=None):
    """Ends a round that will not fill: Syncrep>SyncGateFlush."""
    return op_library.load().syncrep_sync_gate_flush(handle, generation, name=name)


def sync_gate_advance(handle, generation, round_number, step, name=None):
    """Ends a round that was applied, and opens the next: Syncrep>SyncGateAdvance."""
    return op_library.load().syncrep_sync_gate_advance(
        handle, generation, round_number, step, name=name
    )


def sync_gate_drain(handle, generation, name=None):
    """Waits until no gradient is in flight: Syncrep>SyncGateDrain."""
    return op_library.load().syncrep_sync_gate_drain(handle, generation, name=name)


def sync_gate_cancel_updater(
    handle, generation, device: Any = "", incarnation: Any = 0, name=None
):
    """Ends the updater's waits as Cancelled: Syncrep>SyncGateCancelUpdater."""
    return op_library.load().syncrep_sync_gate_cancel_updater(
        handle, generation, device, incarnation, name=name
    )


def sync_gate_configure(handle, quorum, total, name=None):
    """Changes the quorum and the number of workers: Syncrep>SyncGateConfigure."""
    return op_library.load().syncrep_sync_gate_configure(
        handle, quorum, total, name=name
    )


def sync_gate_close(handle, generation=ANY_GENERATION, name=None):
    """Ends all waits, present and future, as end of input: Syncrep>SyncGateClose."""
    return op_library.load().syncrep_sync_gate_close(handle, generation, name=name)


def sync_gate_fail(handle, code, message, generation=ANY_GENERATION, name=None):
    """Ends all waits, present and future, with an error: Syncrep>SyncGateFail."""
    return op_library.load().syncrep_sync_gate_fail(
        handle, code, message, generation, name=name
    )


def sync_gate_stats(handle, name=None):
    """Reads the counters of a gate: Syncrep>SyncGateStats."""
    return op_library.load().syncrep_sync_gate_stats(handle, name=name)
