"""Tables whose rows are found by keys, in checkpoints.

A full checkpoint has the rows of a part that have a key, chunk by chunk, with their
numbers in the part. A checkpoint of changes has the rows that have changed since, and
those that have lost their key. So the last version of a row is the one that counts. A
table is restored key by key, whatever parts it was saved from: each task reads the
chunks that have rows of its own keys.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.checkpoint.directory import value_of

# The last components of the names of a chunk's tensors.
_IDS, _ROWS = "ids", "rows"

# Returns which owner has each key.
Owners = Callable[[np.ndarray], np.ndarray]


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
    owners: Owners

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
    ) -> list[Chunk]:
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
        chunks = list(
            chunks_of(
                self.arrays, saved["num_parts"], readers, self.owners, len(self.parts)
            )
        )
        num_keys = num_of(chunks, len(self.parts))
        for part, num in zip(self.parts, num_keys, strict=True):
            if num > part.num_rows:
                raise ValueError(
                    f"{self.name} has {num:,} keys of one part in checkpoint {last}, "
                    f"where the model has room for {part.num_rows:,}: make the table "
                    "with a larger max_rows"
                )
        return chunks

    def restore(self, chunks: Sequence[Chunk], dtypes: Any = None) -> None:
        """Restores the table; `dtypes`: those of its arrays in the files."""
        dtypes = dtypes or [variable.dtype for variable in self.parts[0].variables]
        for number, part in enumerate(self.parts):
            with tf.device(part.device):
                part.reset()
            add = _adding(part, dtypes)
            for chunk in chunks:
                mask = chunk.masks[number]
                if mask.any():
                    with tf.device(part.device):
                        add(chunk.read(dtypes), tf.constant(mask))


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rows of a table in a checkpoint.

    `masks`: the rows that each owner has. `keys`, `uses`: those of all rows. `read`:
    reads all arrays, which have these dtypes in the files, where the caller is.
    """

    masks: list[np.ndarray]
    keys: np.ndarray
    uses: np.ndarray
    read: Callable[[Sequence[tf.DType]], list[Any]]


def chunks_of(
    arrays: Sequence[str],
    num_parts: int,
    readers: Mapping[str, Any],
    owners: Owners,
    num_owners: int,
) -> Iterator[Chunk]:
    """Yields the chunks that have the last version of any row of a table.

    `arrays`, `num_parts`: of the table in the checkpoint. `owners`: returns which of
    `num_owners` has each key.
    """
    for part_number in range(num_parts):
        names = _part_names(arrays, part_number, num_parts)
        found = [
            (prefix, reader, chunk, value_of(reader, f"{chunk}/{_IDS}"))
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
            uses, keys = value_of(reader, rows[2]), value_of(reader, rows[1])
            wanted, owner = is_newest & (uses[:, 1] > 0), owners(keys)
            masks = [wanted & (owner == i) for i in range(num_owners)]
            yield Chunk(masks, keys, uses, functools.partial(_read, prefix, rows))


def num_of(chunks: Sequence[Chunk], num_owners: int) -> np.ndarray:
    """Returns how many rows of chunks each owner has."""
    counts = [[np.count_nonzero(mask) for mask in x.masks] for x in chunks]
    return np.sum(counts or np.zeros([1, num_owners], np.int64), axis=0)


def keep_most_used(chunks: Sequence[Chunk], room: Sequence[int]) -> None:
    """Takes the least used rows from owners that have no room for all.

    Of rows that were used equally often, those that were used last stay.
    """
    for owner, num in enumerate(num_of(chunks, len(room))):
        if num <= room[owner]:
            continue
        uses = np.concatenate([x.uses[x.masks[owner]] for x in chunks])
        stays = np.zeros(len(uses), bool)
        # The last key of `lexsort` is the first by which it sorts.
        stays[np.lexsort((-uses[:, 0], -uses[:, 1]))[: room[owner]]] = True
        begin = 0
        for chunk in chunks:
            (here,) = np.nonzero(chunk.masks[owner])
            chunk.masks[owner][here] = stays[begin : begin + len(here)]
            begin += len(here)


def _adding(part: KeyedPart, dtypes: Sequence[tf.DType]) -> Any:
    """Traces a function that adds rows of a chunk to a part, on the part's task."""
    specs = [
        tf.TensorSpec([None, *variable.shape[1:]], dtype)
        for variable, dtype in zip(part.variables, dtypes, strict=True)
    ]

    @tf.function(
        autograph=False, input_signature=[specs, tf.TensorSpec([None], tf.bool)]
    )
    def add(read, mask):
        with tf.device(part.device):
            values = [
                tf.cast(tf.boolean_mask(value, mask), variable.dtype)
                for value, variable in zip(read, part.variables, strict=True)
            ]
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


def _read(prefix: str, names: list[str], dtypes: Sequence[tf.DType]) -> list[Any]:
    """Reads arrays of a bundle, where the caller is."""
    return tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        dtypes=list(dtypes),
    )


def _part_names(arrays, part_number, num_parts):
    return tuple(f"{name}/{part_number}-of-{num_parts}" for name in arrays)


def _chunks_in(reader: Any, name: str) -> list[str]:
    """Returns the prefixes of the names of an array's chunks in a checkpoint."""
    pattern = re.compile(re.escape(name) + r"/changed/\d+-\d+(?=/ids$)")
    found = (pattern.match(x) for x in reader.get_variable_to_shape_map())
    return [match[0] for match in found if match]


def _described(row: Sequence[Any] | None) -> str:
    return "nothing" if row is None else f"{row[0]}{list(row[1:])}"
