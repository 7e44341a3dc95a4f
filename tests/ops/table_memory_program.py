"""A part with 50 million rows, few of which are used: reports how much memory it takes.

Arguments: the number of rows of the part, how many of them are used, how often a key is
looked up before it gets a row, and a folder if the part is to be saved.
"""

import json
import pathlib
import sys

import numpy as np
import programs
import tensorflow as tf
from process_threads import resident
from table_parts import TablePart

from tf_syncrep.python.ops import table_ops

WIDTH = 16


def main(rows, used, min_count=1, folder=None):
    begin = resident()
    table = table_ops.IndexedTable("items", 0, rows, min_count, initializer="constant")
    part = TablePart([table], WIDTH, num_slots=1)
    draw = np.random.default_rng(0)
    for _ in range(0, used, 10_000):
        request = np.append(10_000, draw.integers(-(1 << 62), 1 << 62, 10_000))
        for _ in range(min_count):
            found, _ = part.find(request, insert=True)
        tf.raw_ops.ResourceScatterAdd(
            resource=part.slots[0].handle,
            indices=found,
            updates=tf.ones([10_000, WIDTH]),
        )
    part.maintain(1, evict=["least_recent"], unused_for=[100])
    stats = table_ops.TableStats(*part.stats().numpy().tolist())
    assert stats.rows == used
    result = {"bytes": resident() - begin, "of_index": stats.index_bytes}
    if folder is not None:
        checkpoint = tf.train.Checkpoint(keys=part.keys, uses=part.uses)
        checkpoint.save(str(pathlib.Path(folder, "saved")))
        begin = resident()
        part.find(request, insert=True)
        result["after_saving"] = resident() - begin
    programs.report(result)


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
