"""A warm start's tables of a fixed size, and variables that are read at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tf_syncrep.python.checkpoint.contents import Contents, Group, Piece, Share
from tf_syncrep.python.checkpoint.warm_arrays import Arrays, is_convertible, shown
from tf_syncrep.python.checkpoint.warm_items import Item, Taken


class Fixed:
    """Plans what each task reads.

    `padded`: variables that are set to the block that they and others in the source,
    by their names there, have in common.
    """

    def __init__(self, arrays: Arrays, truncate: bool, pad: bool):
        """Has planned nothing yet."""
        self._arrays, self._truncate, self._pad = arrays, truncate, pad
        self.padded: list[tuple[Any, str]] = []
        # By names of the model: those in the files, and the number of rows there.
        self._stored: dict[str, str] = {}
        self._num_stored: dict[str, int] = {}

    def plan(self, item: Item, stored: str) -> Taken | str:
        """Returns what is taken for a variable, or says why nothing is."""
        found = self._arrays.rows(item, item.name) if item.places else None
        num_here = item.num_rows
        if not item.is_table and (
            found is None
            or found.num != num_here
            or found.dtype != item.variable.dtype.base_dtype
        ):
            return self._plan_whole(item, stored)
        if found is None:
            return self._arrays.other_shape(item, stored)
        if found.num > num_here and not self._truncate:
            raise ValueError(
                "A table must have as many rows as in the source, or more, if "
                f"`truncate` is not True. Received: {item.name} of {num_here:,} rows, "
                f"where {stored} has {found.num:,}"
            )
        slots, left_out = self._arrays.slots(
            item, stored, lambda array: self._arrays.rows(item, array)
        )
        taken = [item.name, *slots]
        self._stored |= {array: self._arrays.name_of(array) for array in taken}
        self._num_stored[item.name] = found.num
        if found.num > num_here:
            rest = found.num - num_here
            left_out.append(f"{rest:,} of {found.num:,} rows left out")
        num = min(found.num, num_here)
        return Taken(taken, found.dtype, num, num_here, left_out)

    def _plan_whole(self, item: Item, stored: str) -> Taken | str:
        def fits(array: str) -> bool:
            name = self._arrays.name_of(array)
            return name in self._arrays.source.shapes and self._is_block(
                name, item.arrays[array]
            )

        if not fits(item.name):
            return self._arrays.other_shape(item, stored)
        slots, left_out = self._arrays.slots(item, stored, fits)
        taken = [item.name, *slots]
        for array in taken:
            name, variable = self._arrays.name_of(array), item.arrays[array]
            same = tuple(variable.shape), variable.dtype.base_dtype
            if self._arrays.source.whole(name) == same and not item.places:
                self._stored[array] = name
            else:
                self.padded.append((variable, name))
        shape, dtype = self._arrays.source.whole(stored)
        own = tuple(item.variable.shape)
        if shape != own:
            left_out.append(f"the common block of {shown(shape)} and {shown(own)}")
        num = min(item.num_rows, shape[0]) if own else 1
        return Taken(taken, dtype, num, item.num_rows, left_out)

    def _is_block(self, name: str, variable: Any) -> bool:
        """Returns whether a variable in the source has a block that is taken."""
        shape, dtype = self._arrays.source.whole(name)
        own = tuple(variable.shape)
        return is_convertible(dtype, variable) and (
            shape == own or (self._pad and len(shape) == len(own) > 0)
        )

    def shares(self, contents: Contents) -> dict[str, Share]:
        """Returns what each task reads, by the names in the source."""
        shares = {share.device: self._share(share) for share in contents.shares}
        return {x: share for x, share in shares.items() if share.groups or share.wholes}

    def _share(self, share: Share) -> Share:
        groups = []
        for group in share.without_keyed().groups:
            pieces = tuple(map(self._piece, group.pieces))
            if any(piece.names[0] for piece in pieces):
                groups.append(Group(group.variables, pieces))
        wholes = {
            self._stored[name]: variable
            for name, variable in share.wholes.items()
            if name in self._stored
        }
        return Share(share.device, groups, wholes)

    def _piece(self, piece: Piece) -> Piece:
        names = tuple(self._stored.get(name, "") for name in piece.names)
        num = self._num_stored.get(piece.names[0], piece.vocabulary)
        return dataclasses.replace(piece, names=names, stored_rows=num)


def common_block(values: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Returns values with the block of the stored ones that both have."""
    if values.shape == stored.shape:
        return stored.astype(values.dtype)
    common = tuple(map(slice, np.minimum(values.shape, stored.shape)))
    values = np.array(values)
    values[common] = stored[common]
    return values
