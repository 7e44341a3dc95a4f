"""The ops of the gate: the protocol of synchronous training, call by call.

The gate decides which worker may compute, whose gradients count, and when a step is
over; docs/glossary.md explains its terms. It is on the task on which `sync_gate` ran,
and the other ops find it by its handle. All inputs and outputs are scalars but those of
`sync_gate_stats`. The Docs of the ops in `cc/ops` say what they do and take: each is a
function of this module, by its name.
"""

from __future__ import annotations

from typing import Any

from tf_syncrep.python.ops import op_library

#: Stands for the number of the present generation, an integer or a tensor.
ANY_GENERATION: Any = -1
#: Stands for no worker, where one may be named.
NO_WORKER: Any = {"device": "", "incarnation": 0}


def __getattr__(name: str) -> Any:
    return op_library.function(name, ("sync_gate", "task_id"))
