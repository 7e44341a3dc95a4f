"""What `tf.train.Checkpoint` saves of tables: their parts, and the parts' layout.

It identifies what it saved by the path of attributes that leads there. The name of the
parts depends on their layout, so that parts of another layout match nothing. The layout
is saved beside them, and is restored first: if it differs from the present one, the
parts that were saved are read one after the other, and their rows are put where they
belong now. This uses `tf.train.experimental.PythonState`, which receives the string, or
the array, that was saved under its path.

Keras' optimizers identify a slot by its number. If both the checkpoint and the program
have such an optimizer, slots of another layout would be restored into the wrong places,
silently if their shapes are equal. So that is an error.
"""

from __future__ import annotations

import hashlib
from typing import Any, Generic, TypeVar

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import layout
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables import saved_layout
from tf_syncrep.python.keras.tables.fixed_tables import Tables
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.setting import being_set, keep
from tf_syncrep.python.keras.tables.stacked_tables import StackedTables
from tf_syncrep.python.keras.tables.trainers import give_other_keys

_Of = TypeVar("_Of", bound=StackedTables)


def track(layer: Any, tables: Tables, whole: str | None = None) -> None:
    """Makes `tf.train.Checkpoint` save a layer's tables, and restore them."""
    parts = tables.all_variables()
    for name in tables.variable_names:
        compat.untrack(layer, name)
    root = tf.train.Checkpoint()
    state = _Layout(layer.name, tables, root)
    root.layout = state
    setattr(root, _name_of(state.layout), _numbered(parts))
    # In Keras 3 a path leads from optimizers to the variables themselves.
    compat.track(parts[0], "layout", _Layout(layer.name, tables, None))
    compat.track(layer, saved_layout.OF_FIXED_SIZE, root)
    if whole is not None:
        compat.track(layer, whole, _Whole(tables))


def track_dynamic(layer: Any, tables: DynamicTables) -> None:
    """Makes `tf.train.Checkpoint` save a layer's tables that grow, and restore them.

    It restores them only into parts like those that were saved, since it does not know
    keys.
    """
    for name in tables.variable_names:
        compat.untrack(layer, name)
    root = tf.train.Checkpoint()
    state = root.layout = _DynamicLayout(layer.name, tables)
    setattr(root, _name_of(state.layout), _numbered(tables.all_variables()))
    # In Keras 3 a path leads from optimizers to the variables themselves.
    compat.track(tables.all_trained()[0], "layout", state)
    compat.track(layer, saved_layout.GROWING, root)


class _LayoutState(tf.train.experimental.PythonState, Generic[_Of]):
    """Saves the layout of tables."""

    def __init__(self, layer_name: str, tables: _Of):
        self._layer_name, self._tables = layer_name, tables
        self.layout = saved_layout.as_json(tables)

    def serialize(self) -> str:
        return self.layout


class _DynamicLayout(_LayoutState[DynamicTables]):
    """Refuses tables that grow if their layout has changed, and has others give way."""

    def deserialize(self, string_value: Any) -> None:
        saved = _as_string(string_value)
        if saved != self.layout:
            raise ValueError(
                f"Tables of layer {self._layer_name!r} that grow must lie as they lie "
                f"in the checkpoint: {self.layout}; there {saved}. "
                "tf.train.Checkpoint knows nothing of keys: use tfs.keras.Checkpoint, "
                "which restores them into any parts."
            )

        def keep_all() -> None:
            for part in map(compat.native, self._tables.all_trained()):
                keep(part)

        give_other_keys(self._tables, keep_all)
        self._tables.has_released = True  # Rows may rest in the checkpoint.


class _State(tf.train.experimental.PythonState):
    """A state that only receives."""

    def serialize(self) -> str:
        return ""


class _Whole(_State):
    """Receives a table."""

    def __init__(self, tables: Tables):
        self._tables = tables

    def deserialize(self, string_value: Any) -> None:
        if isinstance(string_value, np.ndarray):
            (name,) = self._tables.by_name
            self._tables.write(name, string_value)


class _SavedPart(_State):
    """Receives the rows of a part of another layout."""

    def __init__(self, tables: Tables, slab: layout.Slab, part_number: int):
        self._tables, self._slab, self._part_number = tables, slab, part_number
        self.has_received = False

    def deserialize(self, string_value: Any) -> None:
        for piece in self._slab.parts(self._part_number):
            self._tables.write_rows(
                piece.table.name,
                string_value[piece.begin : piece.begin + piece.num_rows],
                piece.first_id,
                self._slab.num_parts,
            )
        self.has_received = True


class _Layout(_LayoutState[Tables]):
    """Restores tables of another layout, which it refuses if it has no `root`."""

    def __init__(
        self, layer_name: str, tables: Tables, root: tf.train.Checkpoint | None
    ):
        super().__init__(layer_name, tables)
        self._root = root

    def deserialize(self, string_value: Any) -> None:
        saved = _as_string(string_value)
        if saved == self.layout:
            return
        if self._root is None:
            raise self._error(saved)
        slabs = saved_layout.from_json(saved)
        self._check_tables(slabs)
        if saved_layout.have_equal_shapes(slabs, self._tables.slabs):
            # In Keras 2 paths lead from optimizers to slots, not to their variables.
            raise self._error(saved)
        parts = tf.train.Checkpoint()
        setattr(self._root, _name_of(saved), parts)
        try:
            receivers = [
                _SavedPart(self._tables, slab, part_number)
                for slab in slabs
                for part_number in range(slab.num_parts)
            ]
            with being_set:
                for name, receiver in _named(receivers):
                    setattr(parts, name, receiver)
                    if not receiver.has_received:
                        # It was restored by a path through an optimizer.
                        raise self._error(saved)
        finally:
            delattr(self._root, _name_of(saved))

    def _error(self, saved: str) -> ValueError:
        """Returns the error for parts whose layout must not change."""
        own = saved_layout.described(self._tables.slabs)
        there = saved_layout.described(saved_layout.from_json(saved))
        return ValueError(
            f"Tables of layer {self._layer_name!r} lie in other parts than in the "
            f"checkpoint: {own}; there {there}. tf.train.Checkpoint cannot restore an "
            "optimizer with them: use tfs.keras.Checkpoint, which can, or leave the "
            "optimizer out."
        )

    def _check_tables(self, slabs):
        saved = {t.name: (t.vocabulary_size, t.width) for s in slabs for t in s.tables}
        for name, table in self._tables.by_name.items():
            shape = (table.vocabulary_size, table.width)
            if saved.get(name) != shape:
                raise ValueError(
                    f"Table {name!r} of layer {self._layer_name!r} has shape {shape}. "
                    f"The checkpoint has {saved_layout.described(slabs)}"
                )


def _as_string(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def _name_of(saved):
    return f"parts_{hashlib.sha256(saved.encode()).hexdigest()[:16]}"


def _named(parts):
    return ((f"part_{number}", part) for number, part in enumerate(parts))


def _numbered(parts):
    return tf.train.Checkpoint(**dict(_named(parts)))
