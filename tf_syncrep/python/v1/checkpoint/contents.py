"""What a checkpoint of a `tf.compat.v1` graph holds: what its Saver would save.

The names are those that the Saver uses: `embeddings` for a variable, in parts or not,
and `embeddings/AdamAsync` for an optimizer's slot of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import (
    Contents,
    Piece,
    cpu_of,
    whole_piece,
)
from tf_syncrep.python.v1.part_scalars import scalars_of_graph
from tf_syncrep.python.v1.sync_replicas.optimizer import optimizers_of_graph
from tf_syncrep.python.v1.variable_rows import is_written_by_rows, slice_of

_Key = tf.compat.v1.GraphKeys


def contents_of_graph() -> tuple[Contents, Any]:
    """Finds the contents of a checkpoint of the default graph.

    Returns its global variables and other saveable objects; and a Saver for those of
    them that are neither written row by row nor scalars of parts, or None.
    """
    variables = tf.compat.v1.global_variables()
    slots = _slots_by_variable(variables)
    of_others = {id(slot) for found in slots.values() for slot in found}
    owned = [variable for variable in variables if id(variable) not in of_others]
    contents, others = contents_of([[v, *slots[id(v)]] for v in owned])
    objects = tf.compat.v1.get_collection(_Key.SAVEABLE_OBJECTS)
    for spec in (spec for x in objects for spec in x.specs):
        with tf.device(cpu_of(spec)):
            contents.add_whole(spec.name, tf.identity(spec.tensor))
    scalars = {
        id(scalar.variable): scalar
        for scalar in scalars_of_graph(tf.compat.v1.get_default_graph())
    }
    contents.of_parts += [scalars[id(v)] for v in others if id(v) in scalars]
    wholes = [x for x in (*others, *objects) if id(x) not in scalars]
    saver = tf.compat.v1.train.Saver(wholes, sharded=True) if wholes else None
    return contents, saver


def contents_of(variables: list[list[Any]]) -> tuple[Contents, list[Any]]:
    """Returns the contents of variables, each with its slots; and those at once.

    A variable's slots are saved in the same way as itself, since an update knows only
    whether the variable is written row by row.
    """
    groups, others = [], []
    for group in variables:
        if is_written_by_rows(group[0]):
            groups.append(group)
        else:
            others += group
    # The ops take reference variables after the others.
    groups.sort(key=lambda group: not hasattr(group[0], "handle"))
    contents = Contents()
    for group in groups:
        piece = _piece_of(group)
        contents.add_group(group, [piece])
        contents.tables.add(piece.names[0])
        if group[0].trainable:
            contents.weights.append(piece.names[0])
    for variable in others:
        with tf.device(variable.device):
            value = variable.read_value()
        contents.add_whole(variable.op.name, value)
        if variable.trainable:
            contents.weights.append(variable.op.name)
    return contents, others


def _slots_by_variable(variables: list[Any]) -> dict[int, list[Any]]:
    """Returns each variable's slots that lie beside its rows, by its id.

    A graph's SyncReplicasOptimizer knows its slots. Those of other optimizers are found
    by TensorFlow's names for them, as are other moving averages: the scope in which the
    slot was made, the variable's name, and the slot's own.
    """
    slots: dict[int, list[Any]] = {id(variable): [] for variable in variables}
    for variable in variables:
        slots[id(variable)] += [
            slot
            for optimizer in optimizers_of_graph()
            for slot in optimizer.slots_of(variable)
            if id(slot) in slots and _lies_beside(slot, variable)
        ]
    known = {id(slot) for found in slots.values() for slot in found}
    # A table may have a name within another one's. Slots are not trainable.
    known |= {id(x) for x in variables if x.trainable or slots[id(x)]}
    by_name = {variable.op.name: variable for variable in variables}
    for slot in variables:
        if id(slot) in known:
            continue
        for name in _names_within(slot.op.name):
            variable = by_name.get(name)
            if (
                variable is not None
                and variable.shape == slot.shape
                and _lies_beside(slot, variable)
            ):
                slots[id(variable)].append(slot)
                break
    # A slot of a slot is also a slot of the variable.
    for variable in variables:
        for slot in slots[id(variable)]:
            slots[id(variable)] += slots[id(slot)]
            slots[id(slot)] = []
    return slots


def _names_within(name: str) -> Iterator[str]:
    """Yields what may be the variable's name in a slot's, the likeliest first."""
    parts = name.split("/")
    for end in range(len(parts) - 1, 0, -1):
        for begin in range(end):
            yield "/".join(parts[begin:end])


def _lies_beside(slot: Any, variable: Any) -> bool:
    """Returns whether a slot has values for each row of a variable, on its task."""
    return (
        slot.shape[:1] == variable.shape[:1]
        and slot.device == variable.device
        and type(slot) is type(variable)
    )


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
