"""Checkpoints of a table of which few rows are in use: reports what they take.

The argument is the number of rows that the table may have. Of a full checkpoint and of
one of what has changed since, it reports the bytes that the process has in memory
more, the seconds of processor time, and how many rows were written.
"""

import json
import pathlib
import sys
import tempfile
import time

import numpy as np
import programs
import tensorflow as tf
from table_memory_program import resident

from tf_syncrep.python.ops import checkpoint_ops, table_ops

USED = 10_000


def main(rows):
    vectors = tf.Variable(table_ops.table_zeros([rows, 1], tf.half))
    uses = tf.Variable(table_ops.table_zeros([rows, 2], tf.int32))
    # Most of those in use are the first ones, as when rows are handed out.
    in_use = np.append(np.arange(USED - 1), rows - 1)

    def use(ids, count):
        tf.raw_ops.ResourceScatterUpdate(
            resource=uses.handle, indices=ids, updates=[[1, count]] * len(ids)
        )

    use(in_use, 1)
    writer = checkpoint_ops.checkpoint_writer(shared_name="", counted=True)
    folder = tempfile.mkdtemp()

    def write(token, base):
        begin = resident(), time.process_time()
        checkpoint_ops.checkpoint_begin(
            *(writer, str(pathlib.Path(folder, token)), token, base),
            *([[vectors.handle, uses.handle]], [(0, rows, 0, 1, rows, 1)]),
            *(["table", "uses"], [], []),
            max_kept_bytes=1 << 20,
            patience_secs=60.0,
        )
        done = False
        while not done:
            time.sleep(0.01)  # The wait takes no processor time.
            progress = checkpoint_ops.checkpoint_progress(writer)
            done, code, message, _, written, *_ = progress
        assert code == 0, message
        return {
            "bytes": resident() - begin[0],
            "secs": time.process_time() - begin[1],
            "rows": int(written),
        }

    full = write("first", "")
    use(in_use[-3:], 2)
    use(in_use[:1], 0)
    programs.report({"full": full, "changed": write("second", "first")})


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
