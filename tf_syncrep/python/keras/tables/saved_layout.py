"""The layout of a layer's tables, which files hold beside the tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

from tf_syncrep.python.embedding.layout import DynamicSlab, Slab, Table
from tf_syncrep.python.keras.tables.stacked_tables import StackedTables

# The attributes of a layer that lead to its tables in checkpoints of TensorFlow's.
OF_FIXED_SIZE, GROWING = "_saved_tables", "_saved_dynamic_tables"

_Slab = TypeVar("_Slab", Slab, DynamicSlab)


def as_json(tables: StackedTables) -> str:
    """Describes slabs in JSON, from which `from_json` makes equal ones."""
    return json.dumps(
        [
            {
                "num_parts": slab.num_parts,
                "width": slab.width,
                "dtype": slab.dtype,
                "tables": [
                    [tables.name_in_files(x.name), x.vocabulary_size]
                    for x in slab.tables
                ],
            }
            for slab in tables.slabs
        ]
    )


def from_json(saved: str, kind: type[_Slab] = Slab) -> list[_Slab]:
    """Makes slabs of what `as_json` returned, of tables of fixed size or that grow."""
    return [
        kind(
            "saved",
            [
                Table(
                    name,
                    size,
                    slab["width"],
                    slab["dtype"],
                    grows=kind is DynamicSlab,
                )
                for name, size in slab["tables"]
            ],
            slab["num_parts"],
        )
        for slab in json.loads(saved)
    ]


def have_equal_shapes(slabs: Sequence[Slab], others: Sequence[Slab]) -> bool:
    """Returns whether parts of some slabs have the shapes of others' parts, in order.

    Keras' files identify a slot only by its number and shape. With equal shapes, a slot
    would be taken for that of another part.
    """
    return _shapes(slabs) == _shapes(others)


def described(slabs: Sequence[Slab]) -> str:
    """Describes slabs for errors."""
    return ", ".join(
        f"{slab.num_parts} part{'s' if slab.num_parts > 1 else ''} of "
        + " and ".join(
            f"{table.name} [{table.vocabulary_size}, {table.width}]"
            for table in slab.tables
        )
        for slab in slabs
    )


def _shapes(slabs):
    return [
        (slab.part_rows(part_number), slab.width)
        for slab in slabs
        for part_number in range(slab.num_parts)
    ]
