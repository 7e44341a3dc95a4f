"""Puts the SavedModel of a full publication together, from the files of its moment.

Tasks copy rows, block by block, so that none passes through the coordinator, which
merges the indexes of the files in the end.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_syncrep.python.checkpoint.directory import reader_of
from tf_syncrep.python.embedding.served_tables import (
    SHARE_OF_ROOM,
    PublishedDenseTable,
    PublishedTable,
)
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.publishing.served_model import ServedModel
from tf_syncrep.python.serving.publications import Rows, chunks_of

# Rows are copied in so many blocks, each of which is a file, unless they are less or
# more than so many bytes. One who loads it keeps a block or two in memory.
_NUM_BLOCKS = 32
_LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES = 8 * 2**20, 128 * 2**20


class _Array(NamedTuple):
    """A tensor of the SavedModel: its name in the bundle, and its shape."""

    name: str
    shape: tuple[int, ...]

    def part(self, *ranges: tuple[int, int] | None) -> str:
        """Describes a part of the tensor, as the ops of bundles take it."""
        sizes = " ".join(map(str, self.shape))
        all_ranges = [*ranges, *[None] * (len(self.shape) - len(ranges))]
        where = ":".join("-" if x is None else f"{x[0]},{x[1]}" for x in all_ranges)
        return f"{sizes} {where}"


# Has a task, given by its device, copy some rows to a bundle of a prefix.
_Block = Callable[[str, str], None]


def assemble(
    served: ServedModel,
    number: int,
    prefix: str,
    folder: str,
    devices: Sequence[str],
) -> None:
    """Writes a SavedModel.

    `number`: that of the publication. `prefix`: of the full bundle of its moment.
    `folder`: where to write, which must not exist. `devices`: the CPUs of the tasks
    that copy rows.
    """
    reader = reader_of(prefix)
    for name, variable in served.dense.items():
        variable.assign(reader.get_tensor(name))
    served.version.assign(number)
    served.save(folder)
    blocks: list[_Block] = []
    filled: set[str] = set()
    for rows, table in served.rows:
        copies = _KeyedCopies if rows.has_keys else _Copies
        of_table = copies(rows, table, prefix, reader)
        blocks += of_table.blocks()
        filled |= of_table.names
    bundle = os.path.join(folder, "variables", "variables")
    parts = f"{folder}.parts"
    prefixes = [os.path.join(parts, f"block-{i}") for i in range(len(blocks))]

    def write(i: int) -> None:
        blocks[i](devices[i % len(devices)], prefixes[i])

    with concurrent.futures.ThreadPoolExecutor(len(devices)) as threads:
        list(threads.map(write, range(len(blocks))))
    rest = os.path.join(parts, "rest")
    with compat.apart_from_closures(), tf.device("/device:CPU:0"):
        _copy_without(filled, bundle, rest)
        tf.io.gfile.rmtree(os.path.dirname(bundle))
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[rest, *prefixes],
            destination_prefix=bundle,
            delete_old_dirs=False,
        )
    tf.io.gfile.rmtree(parts)


class _Copies:
    """Copies the rows of a table of a fixed size."""

    def __init__(self, rows: Rows, table: PublishedTable, prefix: str, reader: Any):
        self._rows, self._table = rows, table
        self._prefix, self._reader = prefix, reader
        self._shapes = reader.get_variable_to_shape_map()
        self._row_bytes = max(1, math.prod(table.row_shape) * table.dtype.size)
        self._writers = functools.cache(self._writer)

    @property
    def names(self) -> set[str]:
        """The names of the tensors in the SavedModel's bundle."""
        return {self._name("vectors/.ATTRIBUTES/VARIABLE_VALUE")}

    def _name(self, within: str) -> str:
        return f"{self._rows.argument}/{within}"

    def blocks(self) -> Iterator[_Block]:
        """Yields all rows."""
        stored = _Array(self._rows.name, tuple(self._shapes[self._rows.name]))
        num_rows, num_parts = stored.shape[0], self._table.num_parts
        is_dense = isinstance(self._table, PublishedDenseTable)
        parts = () if is_dense else (num_parts,)
        (name,) = self.names
        saved = _Array(name, (num_rows, *parts, *self._table.row_shape))
        for begin, num in _ranges(0, num_rows, self._row_bytes * num_parts):
            own, to = stored.part((begin, num)), saved.part((begin, num))
            yield functools.partial(self._write, own, to)

    def _write(self, own: str, to: str, device: str, prefix: str) -> None:
        with compat.apart_from_closures():
            self._writers(device)(*map(tf.constant, (prefix, own, to)))

    def _writer(self, device: str) -> Any:
        string = tf.TensorSpec([], tf.string)
        dtype = self._reader.get_variable_to_dtype_map()[self._rows.name]
        (name,) = self.names
        shape = self._table.vectors.shape

        @tf.function(autograph=False, input_signature=[string] * 3)
        def write(to_prefix, own, to):
            with tf.device(device):
                (values,) = tf.raw_ops.RestoreV2(
                    prefix=self._prefix,
                    tensor_names=[self._rows.name],
                    shape_and_slices=own[tf.newaxis],
                    dtypes=[dtype],
                )
                values = tf.reshape(values, [-1, *shape[1:]])
                tf.raw_ops.SaveV2(
                    prefix=to_prefix,
                    tensor_names=[name],
                    shape_and_slices=to[tf.newaxis],
                    tensors=[self._table.stored(values)],
                )

        return write.get_concrete_function()


class _KeyedCopies(_Copies):
    """Copies the rows in use of a table that finds rows by keys, with their keys."""

    def __init__(self, rows: Rows, table: PublishedTable, prefix: str, reader: Any):
        super().__init__(rows, table, prefix, reader)
        self._chunks = [
            [self._chunk(chunk) for chunk in chunks_of(reader, rows.part_names(i)[0])]
            for i in range(rows.num_parts)
        ]
        self._num_keys = sum(x[3] for part in self._chunks for x in part)
        # There is one row at least, to be looked up where a key has none.
        num_rows = max((x[2] for part in self._chunks for x in part), default=1)
        # So much room is left for what comes, or each who loads it makes that.
        num_rows += num_rows // SHARE_OF_ROOM
        shape = (num_rows, rows.num_parts)
        value = ".ATTRIBUTES/VARIABLE_VALUE"
        self._arrays = [
            _Array(self._name(f"vectors/{value}"), (*shape, *table.row_shape)),
            _Array(self._name(f"keys/{value}"), shape),
        ]
        self._index = [
            _Array(self._name(f"index/.ATTRIBUTES/table-{x}"), (self._num_keys,))
            for x in ("keys", "values")
        ]
        self._zero_writers = functools.cache(self._zero_writer)

    @property
    def names(self) -> set[str]:
        """The names of the tensors in the SavedModel's bundle."""
        index = self._index if self._num_keys else []
        return {array.name for array in (*self._arrays, *index)}

    def _chunk(self, name: str) -> tuple[str, int, int, int]:
        """Returns a chunk, its first row, the end of its rows, and how many it has."""
        ids = _Array(f"{name}/ids", tuple(self._shapes[f"{name}/ids"]))
        (size,) = ids.shape
        with tf.device("/device:CPU:0"):
            first, last = tf.raw_ops.RestoreV2(
                prefix=self._prefix,
                tensor_names=[ids.name] * 2,
                shape_and_slices=[ids.part((0, 1)), ids.part((size - 1, 1))],
                dtypes=[tf.int64] * 2,
            )
        return name, int(first[0]), int(last[0]) + 1, size

    def blocks(self) -> Iterator[_Block]:
        """Yields all rows, also those between them that are not in use."""
        offset = 0
        for part_number, chunks in enumerate(self._chunks):
            done = 0
            for name, begin, end, size in chunks:
                yield from self._zeros(part_number, done, begin)
                yield self._keyed(part_number, name, begin, end - begin, offset, size)
                done, offset = end, offset + size
            yield from self._zeros(part_number, done, self._arrays[0].shape[0])

    def _zeros(self, part_number: int, begin: int, end: int) -> Iterator[_Block]:
        for first, num in _ranges(begin, end, self._row_bytes):
            parts = [x.part((first, num), (part_number, 1)) for x in self._arrays]

            def write(device, prefix, num=num, parts=parts):
                with compat.apart_from_closures():
                    self._zero_writers(device)(
                        tf.constant(prefix),
                        tf.constant(parts),
                        tf.constant(num, tf.int64),
                    )

            yield write

    def _keyed(self, part_number, name, begin, num, offset, size) -> _Block:
        within = name[len(self._rows.part_names(part_number)[0]) :]
        vectors, keys, _ = self._rows.part_names(part_number)
        names = [f"{name}/ids", f"{vectors}{within}/rows", f"{keys}{within}/rows"]
        parts = [
            *(x.part((begin, num), (part_number, 1)) for x in self._arrays),
            *(x.part((offset, size)) for x in self._index),
        ]

        def write(device, prefix):
            with compat.apart_from_closures():
                self._writers(device)(
                    tf.constant(prefix),
                    tf.constant(names),
                    tf.constant(parts),
                    tf.constant([begin, num, part_number], tf.int64),
                )

        return write

    def _writer(self, device: str) -> Any:
        dtype = self._trained()
        num_parts = self._rows.num_parts
        outputs = [array.name for array in (*self._arrays, *self._index)]

        @tf.function(
            autograph=False,
            input_signature=[
                tf.TensorSpec([], tf.string),
                tf.TensorSpec([3], tf.string),
                tf.TensorSpec([4], tf.string),
                tf.TensorSpec([3], tf.int64),
            ],
        )
        def write(to_prefix, names, parts, numbers):
            with tf.device(device):
                ids, values, keys = tf.raw_ops.RestoreV2(
                    prefix=self._prefix,
                    tensor_names=names,
                    shape_and_slices=[""] * 3,
                    dtypes=[tf.int64, dtype, tf.int64],
                )
                begin, num, part_number = tf.unstack(numbers)
                at = tf.reshape(ids, [-1, 1]) - begin

                def placed(x, row_shape):
                    x = tf.reshape(x, [-1, *row_shape])
                    return tf.scatter_nd(at, x, tf.stack([num, *row_shape]))

                tf.raw_ops.SaveV2(
                    prefix=to_prefix,
                    tensor_names=outputs,
                    shape_and_slices=parts,
                    tensors=[
                        self._table.stored(placed(values, [1, *self._table.row_shape])),
                        placed(keys, [1]),
                        keys,
                        ids * num_parts + part_number,
                    ],
                )

        return write.get_concrete_function()

    def _zero_writer(self, device: str) -> Any:
        row_shape, dtype = self._table.row_shape, self._table.vectors.dtype

        @tf.function(
            autograph=False,
            input_signature=[
                tf.TensorSpec([], tf.string),
                tf.TensorSpec([2], tf.string),
                tf.TensorSpec([], tf.int64),
            ],
        )
        def write(to_prefix, parts, num):
            with tf.device(device):
                tf.raw_ops.SaveV2(
                    prefix=to_prefix,
                    tensor_names=[array.name for array in self._arrays],
                    shape_and_slices=parts,
                    tensors=[
                        tf.zeros(tf.stack([num, 1, *row_shape]), dtype),
                        tf.zeros(tf.stack([num, 1]), tf.int64),
                    ],
                )

        return write.get_concrete_function()

    def _trained(self) -> Any:
        """Returns the dtype of the vectors in the files."""
        dtypes = self._reader.get_variable_to_dtype_map()
        names = (f"{x[0]}/rows" for part in self._chunks for x in part)
        return dtypes[next(names)]


def _ranges(begin: int, end: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields where blocks of some rows begin, and how many rows they have."""
    num_bytes = (end - begin) * row_bytes // _NUM_BLOCKS
    num_bytes = min(max(num_bytes, _LEAST_BLOCK_BYTES), _MOST_BLOCK_BYTES)
    step = max(1, num_bytes // row_bytes)
    for first in range(begin, end, step):
        yield first, min(step, end - first)


def _copy_without(names: set[str], prefix: str, to_prefix: str) -> None:
    """Copies a bundle of small tensors, without some of them."""
    dtypes = reader_of(prefix).get_variable_to_dtype_map()
    kept = sorted(set(dtypes) - names)
    values = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=kept,
        shape_and_slices=[""] * len(kept),
        dtypes=[dtypes[name] for name in kept],
    )
    tf.raw_ops.SaveV2(
        prefix=to_prefix,
        tensor_names=kept,
        shape_and_slices=[""] * len(kept),
        tensors=values,
    )
