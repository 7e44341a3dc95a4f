"""Ops on large tensors in a process that gets no more memory; reports their errors.

Afterwards, with memory, the same calls must succeed. Argument, JSON: a folder.
"""

import json
import re
import resource
import sys

import numpy as np
import programs
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.ops import checkpoint_ops, sync_gate_ops, work_queue_ops

# An array of this many numbers takes at least 40 MB, which glibc takes from the system
# and gives back at once.
SIZE = 10_000_000
SPARE_BYTES = 4 << 20


def limit_memory():
    """Limits the process to hardly more memory than it has."""
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(line.split()[1]) * 1024 + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def lift_limit():
    """Removes the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def main(folder):
    indices = tf.constant(np.arange(SIZE)[::-1].copy())
    gradient = tf.ones([SIZE, 1])
    variables = [tf.Variable(tf.zeros([SIZE, 1])) for _ in range(3)]
    powers = [tf.Variable([0.9]), tf.Variable([0.999])]
    sparse = tfs.ops.sparse_accumulator(tf.float32, [SIZE, 1], counted=True)

    def adam_async():
        tfs.ops.resource_sparse_apply_adam_async(
            *(x.handle for x in variables + powers),
            *(tf.constant(x) for x in (0.1, 0.9, 0.999, 1e-8)),
            gradient,
            indices,
        )

    def state():
        sums = [float(tf.reduce_sum(x)) for x in variables + powers]
        return [*sums, int(tfs.ops.accumulator_num_accumulated(sparse))]

    def queues():
        # The first threads may get stacks that the system keeps for later ones.
        for i in range(50):
            work_queue_ops.work_queue(1, shared_name=f"{i}")

    writer = checkpoint_ops.checkpoint_writer(shared_name="writer")

    def checkpoint():
        checkpoint_ops.checkpoint_begin(
            *(writer, f"{folder}/ckpt", "", "", [], [], []),
            *([powers[0].handle], ["power"]),
            max_kept_bytes=1 << 20,
            patience_secs=60.0,
        )
        is_done = False
        while not is_done:
            is_done, code, message, *_ = checkpoint_ops.checkpoint_progress(writer)
        if code == tf.errors.RESOURCE_EXHAUSTED:
            raise tf.errors.ResourceExhaustedError(None, None, str(message.numpy()))
        assert code == 0, message.numpy()

    calls = {
        "sparse": lambda: tfs.ops.accumulator_apply_sparse(
            sparse, 0, indices, gradient
        ),
        "adam_async": adam_async,
        "queue": queues,
        "gate": lambda: sync_gate_ops.sync_gate(1, 1, shared_name="gate"),
        "checkpoint": checkpoint,
    }
    before = state()
    errors = {}
    limit_memory()
    for name, call in calls.items():
        try:
            call()
        except tf.errors.ResourceExhaustedError as error:
            (errors[name],) = re.findall(
                r"There is no memory for .* bytes|There is no thread [a-z ]*[a-z]",
                error.message,
            )
    lift_limit()
    between = state()
    for call in calls.values():
        call()
    programs.report([errors, before == between, state()[-1]])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
