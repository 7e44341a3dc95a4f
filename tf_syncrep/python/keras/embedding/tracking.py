"""What `tf.train.Checkpoint` saves of tables: their parts, and how they lie.

It knows what it saved by the way there through attributes. The parts hang under a name
that only their layout has, so that those of another layout are restored into nothing.
How they lay is saved beside them, and is restored first: where they lie otherwise here,
the parts that were saved are read one after the other, and their rows put where they
belong. All of that is `tf.train.experimental.PythonState`, which is given a string, or
an array if that was saved under its name.

An optimizer of Keras names its slots by their number among all. Where there is one in
both checkpoint and program, slots would get in the places of others, and some of them
in silence, if they have one shape. So that is an error.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import layout
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables import saved_layout
from tf_syncrep.python.keras.tables.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.tables import Tables


def track(layer: Any, tables: Tables, whole: str | None = None) -> None:
    """Makes `tf.train.Checkpoint` save a layer's tables, and restore them.

    Args:
        layer: the layer.
        tables: its tables, whose variables are made.
        whole: of one table, the attribute that holds it in layers with one variable,
            from which it is restored, too.
    """
    parts = tables.all_variables()
    for name in tables.variable_names:
        compat.untrack(layer, name)
    root = tf.train.Checkpoint()
    state = _Layout(layer.name, tables, root)
    root.layout = state
    setattr(root, _name_of(state.layout), _numbered(parts))
    # Optimizers of Keras 3 lead to the variables themselves.
    compat.track(parts[0], "layout", _SameLayout(state))
    compat.track(layer, "_saved_tables", root)
    if whole is not None:
        compat.track(layer, whole, _Whole(tables))


def track_dynamic(layer: Any, tables: DynamicTables) -> None:
    """Makes `tf.train.Checkpoint` save a layer's tables that grow, and restore them.

    Only into parts like those that were saved: it knows nothing of keys.
    """
    for name in tables.variable_names:
        compat.untrack(layer, name)
    root = tf.train.Checkpoint()
    state = _DynamicLayout(layer.name, saved_layout.as_json(tables.slabs))
    root.layout = state
    setattr(root, _name_of(state.layout), _numbered(tables.all_variables()))
    # Optimizers of Keras 3 lead to the variables themselves.
    compat.track(
        tables.all_trained()[0], "layout", _DynamicLayout(layer.name, state.layout)
    )
    compat.track(layer, "_saved_dynamic_tables", root)


class _DynamicLayout(tf.train.experimental.PythonState):
    """Wants tables that grow to lie as they lay."""

    def __init__(self, layer_name: str, layout: str):
        self._layer_name, self.layout = layer_name, layout

    def serialize(self) -> str:
        return self.layout

    def deserialize(self, string_value: Any) -> None:
        saved = _as_string(string_value)
        if saved != self.layout:
            raise ValueError(
                f"Tables of layer {self._layer_name!r} that grow must lie as they lie "
                f"in the checkpoint: {self.layout}; there {saved}. "
                "tf.train.Checkpoint knows nothing of keys: use tfs.keras.Checkpoint, "
                "which restores them into any parts."
            )


class _State(tf.train.experimental.PythonState):
    """With the one method that a few have no use for."""

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


class _Part(_State):
    """Receives the rows of a part that lay otherwise."""

    def __init__(self, tables: Tables, slab: layout.Slab, shard: int):
        self._tables, self._slab, self._shard = tables, slab, shard
        self.has_received = False

    def deserialize(self, string_value: Any) -> None:
        for piece in self._slab.parts(self._shard):
            self._tables.write_rows(
                piece.table.name,
                string_value[piece.begin : piece.begin + piece.num_rows],
                piece.first_id,
                self._slab.num_shards,
            )
        self.has_received = True


class _Layout(tf.train.experimental.PythonState):
    """Saves how tables lie, and restores those that lay otherwise."""

    def __init__(self, layer_name: str, tables: Tables, root: tf.train.Checkpoint):
        self._layer_name, self._tables, self._root = layer_name, tables, root
        self.layout = saved_layout.as_json(tables.slabs)

    def serialize(self) -> str:
        return self.layout

    def deserialize(self, string_value: Any) -> None:
        saved = _as_string(string_value)
        if saved == self.layout:
            return
        slabs = saved_layout.from_json(saved)
        self._check_tables(slabs)
        if saved_layout.have_equal_shapes(slabs, self._tables.slabs):
            # Keras 2 leads to slots, not to the variables that they belong to.
            raise self.error(saved)
        parts = tf.train.Checkpoint()
        setattr(self._root, _name_of(saved), parts)
        try:
            receivers = [
                _Part(self._tables, slab, shard)
                for slab in slabs
                for shard in range(slab.num_shards)
            ]
            for name, receiver in _named(receivers):
                setattr(parts, name, receiver)
                if not receiver.has_received:
                    # An optimizer has led to it already.
                    raise self.error(saved)
        finally:
            delattr(self._root, _name_of(saved))

    def error(self, saved: str) -> ValueError:
        """What to raise where parts must lie as they lay."""
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


class _SameLayout(tf.train.experimental.PythonState):
    """Wants tables to lie as they lay."""

    def __init__(self, state: _Layout):
        self._state = state

    def serialize(self) -> str:
        return self._state.serialize()

    def deserialize(self, string_value: Any) -> None:
        saved = _as_string(string_value)
        if saved != self._state.layout:
            raise self._state.error(saved)


def _as_string(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def _name_of(saved):
    return f"parts_{hashlib.sha256(saved.encode()).hexdigest()[:16]}"


def _named(parts):
    return ((f"part_{number}", part) for number, part in enumerate(parts))


def _numbered(parts):
    return tf.train.Checkpoint(**dict(_named(parts)))
