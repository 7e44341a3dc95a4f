"""How the tables of a layer lie, as files remember it beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tf_syncrep.python.embedding.layout import Slab, Table


def as_json(slabs: Sequence[Slab]) -> str:
    """What `from_json` makes equal slabs of."""
    return json.dumps(
        [
            {
                "num_parts": slab.num_shards,
                "width": slab.width,
                "dtype": slab.dtype,
                "tables": [[x.name, x.vocabulary_size] for x in slab.tables],
            }
            for slab in slabs
        ]
    )


def from_json(saved: str) -> list[Slab]:
    """Slabs that were saved."""
    return [
        Slab(
            "saved",
            [
                Table(name, size, slab["width"], slab["dtype"])
                for name, size in slab["tables"]
            ],
            slab["num_parts"],
        )
        for slab in json.loads(saved)
    ]


def have_equal_shapes(slabs: Sequence[Slab], others: Sequence[Slab]) -> bool:
    """Whether the parts of slabs have the shapes of those of others, in their order.

    What is known of a part by its number and shape alone, like a slot in Keras' files,
    would then be taken for that of another part.
    """
    return _shapes(slabs) == _shapes(others)


def described(slabs: Sequence[Slab]) -> str:
    """For errors."""
    return ", ".join(
        f"{slab.num_shards} part{'s' if slab.num_shards > 1 else ''} of "
        + " and ".join(
            f"{table.name} [{table.vocabulary_size}, {table.width}]"
            for table in slab.tables
        )
        for slab in slabs
    )


def _shapes(slabs):
    return [
        (slab.shard_rows(shard), slab.width)
        for slab in slabs
        for shard in range(slab.num_shards)
    ]
