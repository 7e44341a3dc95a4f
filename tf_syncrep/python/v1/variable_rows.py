"""Which variables of a graph are tables, and which rows of a table a variable holds."""

from __future__ import annotations

from typing import Any

from tf_syncrep.python.checkpoint.contents import is_table


def is_written_by_rows(variable: Any) -> bool:
    """Returns whether a checkpoint reads a variable while training goes on."""
    return is_table(variable) or slice_of(variable) is not None


def part_of(variable: Any) -> Any:
    """Returns which part of another a variable is, as a SaveSliceInfoDef, or None."""
    # Some variables have no complete definition; then they are no parts either.
    definition = variable.to_proto()
    if not definition.HasField("save_slice_info_def"):
        return None
    part = definition.save_slice_info_def
    return part if part.full_name else None


def slice_of(variable: Any) -> Any:
    """Returns which rows of a table a variable is, as a SaveSliceInfoDef, or None."""
    part = part_of(variable)
    if part is None:
        return None
    if list(part.full_shape[1:]) != list(part.var_shape[1:]):
        raise ValueError(
            "Checkpoints hold variables in parts that are ranges of rows. Received: "
            f"{part.full_name} of shape {list(part.full_shape)}, of which "
            f"{variable.op.name} has shape {list(part.var_shape)}"
        )
    return part
