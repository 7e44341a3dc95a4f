"""What a checkpoint of a `tf.compat.v1` graph holds: what its Saver would save.

The names are those that the Saver uses: `embeddings` for a variable, in parts or not,
and `embeddings/AdamAsync` for an optimizer's slot of it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import (
    Builder,
    Contents,
    Piece,
    cpu_of,
    whole_piece,
)
from tf_syncrep.python.train.variable_rows import is_written_by_rows, slice_of

_Key = tf.compat.v1.GraphKeys


def contents_of_graph() -> tuple[Contents, Any]:
    """Finds the contents of a checkpoint of the default graph.

    Returns:
        Its global variables and other saveable objects; and a Saver for those of them
        that are not written row by row, or None.

    Raises:
        ValueError: a variable has parts that are not ranges of rows.
    """
    variables = tf.compat.v1.global_variables()
    tables = [v for v in variables if is_written_by_rows(v)]
    slots = _slots_by_table(tables)
    of_tables = {id(slot) for found in slots.values() for slot in found}
    groups = [
        [table, *slots[id(table)]] for table in tables if id(table) not in of_tables
    ]
    # The ops take reference variables after the others.
    groups.sort(key=lambda group: not hasattr(group[0], "handle"))
    builder = Builder()
    for group in groups:
        builder.add_group(group, [_piece_of(group)])
    of_groups = {id(variable) for variable in tables}
    others = [v for v in variables if id(v) not in of_groups]
    for variable in others:
        with tf.device(variable.device):
            value = variable.read_value()
        builder.add_whole(variable.op.name, value)
    objects = tf.compat.v1.get_collection(_Key.SAVEABLE_OBJECTS)
    for spec in (spec for x in objects for spec in x.specs):
        with tf.device(cpu_of(spec)):
            builder.add_whole(spec.name, tf.identity(spec.tensor))
    wholes = [*others, *objects]
    saver = tf.compat.v1.train.Saver(wholes, sharded=True) if wholes else None
    return builder.build(), saver


def _slots_by_table(tables: list[Any]) -> dict[int, list[Any]]:
    """Returns each table's slots, by its id: variables of its shape, named after it.

    This is how TensorFlow names the variables that optimizers and moving averages keep
    for a variable.
    """
    by_name = {table.op.name: table for table in tables}
    slots: dict[int, list[Any]] = {id(table): [] for table in tables}
    for slot in tables:
        name = slot.op.name
        while "/" in name:
            name = name.rsplit("/", 1)[0]
            table = by_name.get(name)
            if (
                table is not None
                and table.shape == slot.shape
                and table.device == slot.device
                and type(table) is type(slot)
            ):
                slots[id(table)].append(slot)
                break
    # A slot of a slot is also a slot of the table.
    for table in tables:
        for slot in slots[id(table)]:
            slots[id(table)] += slots[id(slot)]
            slots[id(slot)] = []
    return slots


def _piece_of(group: list[Any]) -> Piece:
    """Returns the piece that a group holds: the rows of a table, or of a part of it."""
    parts = [slice_of(variable) for variable in group]
    num_rows = group[0].shape.as_list()[0]
    if parts[0] is None:
        return whole_piece(num_rows, [variable.op.name for variable in group])
    names = [
        variable.op.name if part is None else part.full_name
        for variable, part in zip(group, parts, strict=True)
    ]
    return Piece(
        parts[0].var_offset[0], num_rows, 1, parts[0].full_shape[0], tuple(names)
    )
