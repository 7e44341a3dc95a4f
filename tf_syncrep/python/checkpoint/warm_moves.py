"""Rows of tables of fixed size for tables that grow, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Piece
from tf_syncrep.python.checkpoint.keyed_tables import Chunk, KeyedTable
from tf_syncrep.python.checkpoint.source import Rows, Source
from tf_syncrep.python.ops import table_ops

# How many bytes of the vectors of one stored part a task reads at a time.
_BYTES_AT_A_TIME = 8 << 20


def fill_growing_from_fixed(table: KeyedTable, source: Source, stored: Rows) -> None:
    """Gives the rows of a table of fixed size to the keys that are their numbers.

    `table`: with the arrays that are taken, by their names in the files. Each task
    reads all rows, some at a time, and keeps its own.
    """
    row_bytes = max(1, int(np.prod(stored.shape))) * stored.dtype.size
    at_a_time = max(1, _BYTES_AT_A_TIME // row_bytes) * stored.shards
    for number, part in enumerate(table.parts):
        for begin in range(0, stored.num, at_a_time):
            num = min(at_a_time, stored.num - begin)
            keys = np.arange(begin, begin + num)
            (here,) = np.nonzero(table.owners(keys) == number)
            with tf.device(part.device):
                read = source.read_range(
                    part.variables, table.arrays, begin, num, stored.num
                )
                last_use = tf.fill([len(here)], table_ops.NOW)
                counts = tf.ones([len(here)], tf.int32)
                rows = part.add(tf.constant(keys[here]), last_use, counts)
                for variable, values in zip(part.variables, read, strict=True):
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=variable.handle,
                        indices=rows,
                        updates=tf.gather(values, here),
                    )


def fill_fixed_from_growing(
    chunks: Sequence[Chunk],
    dtypes: Sequence[tf.DType],
    arrays: Sequence[str],
    places: Sequence[tuple[str, Mapping[str, Any], Piece]],
    begins: Sequence[int],
) -> None:
    """Gives the rows of a table that grows to the numbers that are their keys.

    `chunks`: with vectors, keys, uses and slots; a mask for each of the places.
    `dtypes`: of these in the files. `arrays`: names of the vectors and the slots,
    which `places` has on each task, with the rows that lie there. `begins`: where these
    begin.
    """
    for number, (device, variables, piece) in enumerate(places):
        for chunk in chunks:
            mask = chunk.masks[number]
            if not mask.any():
                continue
            ids = (chunk.keys[mask] - piece.first) // piece.stride + begins[number]
            with tf.device(device):
                vectors, _, _, *slots = tf.raw_ops.RestoreV2(
                    prefix=chunk.prefix,
                    tensor_names=chunk.names,
                    shape_and_slices=[""] * len(dtypes),
                    dtypes=dtypes,
                )
                for array, values in zip(arrays, [vectors, *slots], strict=True):
                    variable = variables[array]
                    values = tf.cast(tf.boolean_mask(values, mask), variable.dtype)
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=variable.handle,
                        indices=tf.constant(ids),
                        updates=values,
                    )
