"""How many threads a task has, set by TensorFlow's own environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

INTER_OP_VARIABLE = "TF_NUM_INTEROP_THREADS"
INTRA_OP_VARIABLE = "TF_NUM_INTRAOP_THREADS"

# A call of a function keeps a thread of TensorFlow's pool for as long as the function
# runs, and requests of other tasks for its tensors are answered by the same pool. With
# one thread a worker waits in its step for a server that waits for ids of this worker.
MIN_INTER_OP_THREADS = 2

# On a machine with fewer cores than this a server gets this many threads, since several
# calls may wait at once, for queues or for locks of variables.
_SMALL_MACHINE_CORES = _SMALL_MACHINE_INTER_OP_THREADS = 4


def environment(
    inter_op_threads: int | None,
    intra_op_threads: int | None,
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Returns the environment of a process with these numbers of threads.

    None stands for the number in `base`, or TensorFlow's choice.
    """
    chosen = {INTER_OP_VARIABLE: inter_op_threads, INTRA_OP_VARIABLE: intra_op_threads}
    return {
        **base,
        **{name: str(value) for name, value in chosen.items() if value is not None},
    }


def share_of_cores(num_workers: int) -> int:
    """Returns how many threads an op of each task has, if all are on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, num_workers))


def config_for(num_cores: int, environ: Mapping[str, str] = os.environ):
    """Returns how many threads a server has, and how they wait, as a ConfigProto."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    given = environ.get(INTER_OP_VARIABLE)
    is_small = num_cores < _SMALL_MACHINE_CORES
    if given is None and is_small:
        config.inter_op_parallelism_threads = _SMALL_MACHINE_INTER_OP_THREADS
    elif given is not None and given.strip() == "1":
        config.inter_op_parallelism_threads = MIN_INTER_OP_THREADS
    if is_small:
        # Threads look for work in a loop before they sleep. If there are more threads
        # than cores, such a thread would keep a core from one that has work.
        config.experimental.disable_thread_spinning = True
    return config
