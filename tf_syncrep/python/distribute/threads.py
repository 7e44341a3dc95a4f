"""How many threads a task runs ops with, told to TensorFlow by its own variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

INTER_OP_VARIABLE = "TF_NUM_INTEROP_THREADS"
INTRA_OP_VARIABLE = "TF_NUM_INTRAOP_THREADS"

# A call of a function keeps a thread of TensorFlow's pool for as long as the function
# runs, and requests of other tasks for its tensors are answered by the same pool. With
# one thread a worker waits in its step for a server that waits for ids of this worker.
MIN_INTER_OP_THREADS = 2

# Of machines with fewer cores than this a server has so many: several calls may wait at
# once, for queues or for locks of variables.
_SMALL_MACHINE_CORES = _SMALL_MACHINE_INTER_OP_THREADS = 4


def environment(
    inter_op_threads: int | None,
    intra_op_threads: int | None,
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of a process with so many threads.

    Args:
        inter_op_threads: how many ops may run at the same time; None for what `base`
          says, or TensorFlow's choice.
        intra_op_threads: how many threads they may share their work among; None, too.
        base: what to start from.

    Returns:
        A new environment.
    """
    chosen = {INTER_OP_VARIABLE: inter_op_threads, INTRA_OP_VARIABLE: intra_op_threads}
    return {
        **base,
        **{name: str(value) for name, value in chosen.items() if value is not None},
    }


def config_for(num_cores: int, environ: Mapping[str, str] = os.environ):
    """Says how many threads a server has, and what they do without work.

    Args:
        num_cores: how many cores the machine has.
        environ: the environment, whose word on the number of threads counts, except
            that one thread for ops is too few.

    Returns:
        A `tf.compat.v1.ConfigProto`; what it does not say is TensorFlow's to choose.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    given = environ.get(INTER_OP_VARIABLE)
    is_small = num_cores < _SMALL_MACHINE_CORES
    if given is None and is_small:
        config.inter_op_parallelism_threads = _SMALL_MACHINE_INTER_OP_THREADS
    elif given is not None and given.strip() == "1":
        config.inter_op_parallelism_threads = MIN_INTER_OP_THREADS
    if is_small:
        # With more threads than cores, one that looks for work in a loop, as they do
        # before they sleep, keeps a core from one that has some.
        config.experimental.disable_thread_spinning = True
    return config
