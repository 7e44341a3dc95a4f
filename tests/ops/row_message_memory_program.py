"""Looks rows up and makes a message of them: reports how much memory that takes.

Argument: whether there is room in front of the rows.
"""

import json
import resource
import sys

import programs
import tensorflow as tf

from tf_syncrep.python.ops import op_library, row_message_ops

WIDTH = 64
NUM_ROWS = 500_000
raw_ops = op_library.load()


def main(has_room):
    table = tf.Variable(tf.zeros([10, WIDTH]))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int32)])
    def message(numbers):
        rows = raw_ops.syncrep_embedding_gather(
            table.handle,
            numbers,
            dtype=tf.float32,
            Tout=tf.float32,
            shape=table.shape,
            head_rows=has_room,
        )
        return row_message_ops.row_message(rows, [tf.zeros([9])], head_rows=1)

    message(tf.zeros([10], tf.int32))
    numbers = tf.zeros([NUM_ROWS], tf.int32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert message(numbers).shape == (NUM_ROWS + 1, WIDTH)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    programs.report({"times": (peak - before) * 1024 / (NUM_ROWS * WIDTH * 4)})


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
