"""A part with 50 million rows, few of which are used: reports how much memory it takes.

Arguments: the number of rows of the part, how many of them are used, and how often a
key is looked up before it gets a row.
"""

import json
import pathlib
import sys

import numpy as np
import programs
import tensorflow as tf

from tf_syncrep.python.ops import table_ops

WIDTH = 16


def resident():
    """Bytes of this process that are in memory."""
    status = pathlib.Path("/proc/self/status").read_text()
    (line,) = (x for x in status.splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def main(rows, used, min_count=1):
    begin = resident()
    index = table_ops.table_index(
        [table_ops.IndexedTable("items", 0, rows, min_count, initializer="constant")],
        counted=True,
    )
    vectors, slot = (
        tf.Variable(table_ops.table_zeros([rows, WIDTH], tf.float32)) for _ in range(2)
    )
    keys = tf.Variable(table_ops.table_zeros([rows], tf.int64))
    uses = tf.Variable(table_ops.table_zeros([rows, 2], tf.int32))
    part = (index, vectors.handle, keys.handle, uses.handle)
    draw = np.random.default_rng(0)
    for _ in range(0, used, 10_000):
        request = np.append(10_000, draw.integers(-(1 << 62), 1 << 62, 10_000))
        for _ in range(min_count):
            found, _ = table_ops.table_find(
                *part, request, insert=True, shape=vectors.shape, dtype=tf.float32
            )
        tf.raw_ops.ResourceScatterAdd(
            resource=slot.handle, indices=found, updates=tf.ones([10_000, WIDTH])
        )
    table_ops.table_maintain(
        *part,
        1,
        slots=[slot.handle],
        slot_initials=[0.0],
        evict=["least_recent"],
        unused_for=[100],
        dtype=tf.float32,
    )
    stats = table_ops.TableStats(*table_ops.table_stats(index)[0].numpy().tolist())
    assert stats.in_use == used
    programs.report({"bytes": resident() - begin, "of_index": stats.bytes})


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
