"""Tables whose rows are found by keys, in checkpoints.

A full checkpoint has the rows of a part that have a key, chunk by chunk, with their
numbers in the part. A checkpoint of changes has the rows that have changed since, and
those that have lost their key. So the last version of a row is the one that counts. A
table is restored key by key, whatever parts it was saved from: each task reads the
chunks that have rows of its own keys.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# The last components of the names of a chunk's tensors.
_IDS, _ROWS = "ids", "rows"


@dataclasses.dataclass(frozen=True)
class KeyedPart:
    """The part of a table that one task has.

    `add`: makes rows for keys, given when each was used last, and how often.
    """

    device: str
    variables: tuple[Any, ...]
    num_rows: int
    reset: Callable[[], None]
    add: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class KeyedTable:
    """A table whose rows are found by keys."""

    name: str
    arrays: tuple[str, ...]
    parts: tuple[KeyedPart, ...]
    owners: Callable[[np.ndarray], np.ndarray]

    def part_names(self, part_number: int) -> tuple[str, ...]:
        """Returns the names of the arrays of a part."""
        return _part_names(self.arrays, part_number, len(self.parts))

    def description(self) -> dict[str, Any]:
        """Returns what a checkpoint notes of the table beside its rows, for JSON."""
        return {"num_parts": len(self.parts), "rows": self._rows()}

    def _rows(self):
        return {
            name: [variable.dtype.name, *variable.shape[1:]]
            for name, variable in zip(self.arrays, self.parts[0].variables, strict=True)
        }

    def plan(
        self, saved: Mapping[str, Any] | None, readers: Mapping[str, Any]
    ) -> list[_Chunk]:
        """Finds out which chunks to read; writes nothing.

        `saved`: the `description` in the checkpoint; None if there is none. `readers`:
        the readers of a full checkpoint and of those with its changes, in order, by the
        checkpoints' prefixes.
        """
        last = list(readers)[-1]
        if saved is None:
            raise ValueError(
                f"Checkpoint {last} does not have table {self.name!r} as one that "
                "grows: it belongs to another model."
            )
        for name, own in self._rows().items():
            found = saved["rows"].get(name)
            if found != own:
                raise ValueError(
                    f"{name} has rows of {_described(found)} in checkpoint {last}, "
                    f"where the model has {_described(own)}"
                )
        chunks = list(self._chunks(saved["num_parts"], readers))
        num_keys = np.zeros(len(self.parts), np.int64)
        for chunk in chunks:
            num_keys += [np.count_nonzero(mask) for mask in chunk.masks]
        for part, num in zip(self.parts, num_keys, strict=True):
            if num > part.num_rows:
                raise ValueError(
                    f"{self.name} has {num:,} keys of one part in checkpoint {last}, "
                    f"where the model has room for {part.num_rows:,}: make the table "
                    "with a larger max_rows"
                )
        return chunks

    def _chunks(self, num_parts, readers) -> Iterator[_Chunk]:
        """Yields the chunks that have the last version of any row."""
        for part_number in range(num_parts):
            names = _part_names(self.arrays, part_number, num_parts)
            found = [
                (prefix, reader, chunk, reader.get_tensor(f"{chunk}/{_IDS}"))
                for prefix, reader in readers.items()
                for chunk in _chunks_in(reader, names[0])
            ]
            size = max((int(ids[-1]) + 1 for *_, ids in found), default=0)
            newest = np.full(size, -1, np.int32)
            for number, (*_, ids) in enumerate(found):
                newest[ids] = number
            for number, (prefix, reader, chunk, ids) in enumerate(found):
                is_newest = newest[ids] == number
                if not is_newest.any():
                    continue
                within = chunk[len(names[0]) :]
                rows = [f"{name}{within}/{_ROWS}" for name in names]
                is_in_use = reader.get_tensor(rows[2])[:, 1] > 0
                owners = self.owners(reader.get_tensor(rows[1]))
                wanted = is_newest & is_in_use
                masks = [wanted & (owners == i) for i in range(len(self.parts))]
                yield _Chunk(prefix, rows, masks)

    def restore(self, chunks: Sequence[_Chunk]) -> None:
        """Restores the table."""
        for number, part in enumerate(self.parts):
            with tf.device(part.device):
                part.reset()
            add = _adding(part)
            for chunk in chunks:
                mask = chunk.masks[number]
                if mask.any():
                    add(
                        tf.constant(chunk.prefix),
                        tf.constant(chunk.names),
                        tf.constant(mask),
                    )


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Some rows of a table in a checkpoint."""

    prefix: str
    names: list[str]
    masks: list[np.ndarray]


def _adding(part: KeyedPart) -> Any:
    """Traces a function that adds rows of a chunk to a part, on the part's task."""
    dtypes = [variable.dtype for variable in part.variables]

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([], tf.string),
            tf.TensorSpec([len(dtypes)], tf.string),
            tf.TensorSpec([None], tf.bool),
        ],
    )
    def add(prefix, names, mask):
        with tf.device(part.device):
            read = tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=names,
                shape_and_slices=tf.fill([len(dtypes)], ""),
                dtypes=dtypes,
            )
            values = []
            for value, variable in zip(read, part.variables, strict=True):
                value = tf.ensure_shape(value, [None, *variable.shape[1:]])
                values.append(tf.boolean_mask(value, mask))
            vectors, keys, uses, *others = values
            rows = part.add(keys, uses[:, 0], uses[:, 1])
            own, _, _, *beside = part.variables
            for variable, value in zip([own, *beside], [vectors, *others], strict=True):
                tf.raw_ops.ResourceScatterUpdate(
                    resource=variable.handle, indices=rows, updates=value
                )

    # Not the `tf.function`: TensorFlow would take five parts, each of which is traced
    # at its first call, for one function that is traced again and again.
    return add.get_concrete_function()


def _part_names(arrays, part_number, num_parts):
    return tuple(f"{name}/{part_number}-of-{num_parts}" for name in arrays)


def _chunks_in(reader: Any, name: str) -> list[str]:
    """Returns the prefixes of the names of an array's chunks in a checkpoint."""
    pattern = re.compile(re.escape(name) + r"/changed/\d+-\d+(?=/ids$)")
    found = (pattern.match(x) for x in reader.get_variable_to_shape_map())
    return [match[0] for match in found if match]


def _described(row: Sequence[Any] | None) -> str:
    return "nothing" if row is None else f"{row[0]}{list(row[1:])}"
