"""Checkpoints in a process that gets no memory for a copy of the variable.

Argument: a folder. TF_ENABLE_ONEDNN_OPTS must be 0: with oneDNN, TensorFlow keeps the
memory that it frees, and would find some there.
"""

import re
import sys

import numpy as np
import out_of_memory_program as out_of_memory
import programs
import tensorflow as tf
from out_of_memory_program import SIZE

from tf_syncrep.python.ops import checkpoint_ops

NUM_SLICES = 100


def save_in_slices(prefix, value):
    """Saves it like a checkpoint with a table: there is memory to read a slice."""
    num = SIZE // NUM_SLICES
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["saved"] * NUM_SLICES,
        shape_and_slices=[f"{SIZE} 1 {i * num},{num}:-" for i in range(NUM_SLICES)],
        tensors=tf.split(value, NUM_SLICES),
    )


def main(folder):
    variable = tf.Variable(tf.zeros([SIZE, 1]))
    handles, names = [variable.handle], ["saved"]
    writer = checkpoint_ops.checkpoint_writer(shared_name="writer")
    save_in_slices(f"{folder}/saved", tf.ones([SIZE, 1]))
    being_read = variable.read_value()  # so that it is copied before it is written

    def begin():
        checkpoint_ops.checkpoint_begin(
            *(writer, f"{folder}/begun", "", "", [], [], [], handles, names),
            max_kept_bytes=1 << 20,
            patience_secs=60.0,
        )

    def restore(*layout):
        checkpoint_ops.checkpoint_restore([f"{folder}/saved"], *layout)

    calls = {
        "begin": begin,
        "restore whole": lambda: restore([], [], [], handles, names),
        "restore table": lambda: restore(
            [handles], [(0, SIZE, 0, 1, SIZE)], names, [], []
        ),
    }
    errors = {}
    out_of_memory.limit_memory()
    for name, call in calls.items():
        try:
            call()
        except tf.errors.ResourceExhaustedError as error:
            (errors[name],) = re.findall("There is no memory for.*bytes", error.message)
    out_of_memory.lift_limit()
    between = float(tf.reduce_sum(variable))
    for call in calls.values():
        call()
    after = float(tf.reduce_sum(variable))
    programs.report([errors, between, after, bool(np.any(being_read))])


if __name__ == "__main__":
    main(*sys.argv[1:])
