"""The ops of the gate: the protocol of synchronous training, call by call.

The gate decides which worker may compute, whose gradients count, and when a step is
over; docs/glossary.md explains its terms. It is on the task on which `sync_gate` ran,
and the other ops find it by its handle. All inputs and outputs are scalars but those of
`sync_gate_stats`. The Docs of the ops in `cc/ops` say what they do and take: a function
of this module that is not below is the op of its name.
"""

from __future__ import annotations

from typing import Any

from tf_syncrep.python.ops import op_library

#: Stands for the number of the present generation, an integer or a tensor.
ANY_GENERATION: Any = -1

_raw_ops: Any = op_library.load()


def __getattr__(name: str) -> Any:
    return op_library.function(name, ("sync_gate", "task_id"))


def sync_gate_cancel_updater(
    handle, generation, device: Any = "", incarnation: Any = 0
):
    """Ends the updater's waits as Cancelled: Syncrep>SyncGateCancelUpdater."""
    return _raw_ops.syncrep_sync_gate_cancel_updater(
        handle, generation, device, incarnation
    )


def sync_gate_close(handle, generation=ANY_GENERATION):
    """Ends all waits, present and future, as end of input: Syncrep>SyncGateClose."""
    return _raw_ops.syncrep_sync_gate_close(handle, generation)


def sync_gate_fail(handle, code, message, generation=ANY_GENERATION):
    """Ends all waits, present and future, with an error: Syncrep>SyncGateFail."""
    return _raw_ops.syncrep_sync_gate_fail(handle, code, message, generation)
