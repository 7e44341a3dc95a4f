"""`get_weights` and `set_weights` that do not tell into how many parts tables are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import layout
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.embedding.tables import Tables, tables_with


class _Slab:
    """Parts of stacked tables as the one variable that they are in one process."""

    def __init__(self, tables: Tables, slab: layout.Slab):
        self._tables, self._slab = tables, slab
        self.shape = (slab.num_rows, slab.width)

    def numpy(self) -> np.ndarray:
        tables = self._slab.tables
        return np.concatenate([self._tables.read(table.name) for table in tables])

    def assign(self, values: Any) -> None:
        for table in self._slab.tables:
            first = self._slab.first_row(table)
            rows = values[first : first + table.vocabulary_size]
            self._tables.write(table.name, rows)


def show_tables_whole() -> None:
    """Makes Keras' layers and models give and take tables in parts as whole arrays.

    So what one process got with `get_weights` can be set on a cluster, and the other
    way round. Layers and models without a table in parts are not concerned.
    """
    for name, ours in (("get_weights", _get), ("set_weights", _set)):
        stock = getattr(tf.keras.layers.Layer, name)
        setattr(tf.keras.layers.Layer, name, _in_front_of(stock, ours))


def _in_front_of(stock: Callable[..., Any], ours: Callable[..., Any]) -> Any:
    @functools.wraps(stock)
    def method(self, *args, **kwargs):
        variables = _variables(self)
        if len(variables) == len(self.weights):
            return stock(self, *args, **kwargs)
        return ours(self, variables, *args, **kwargs)

    return method


def _variables(layer: Any) -> list[Any]:
    """The weights of a layer, and in the place of a slab's first part the slab."""
    natives = [compat.native(v) for v in layer.weights]
    slab_of = {
        id(part): (_Slab(tables, slab) if shard == 0 else None)
        for tables in tables_with(natives)
        for slab in tables.slabs
        for shard, part in enumerate(tables.parts(slab))
    }
    found = [slab_of.get(id(native), native) for native in natives]
    return [variable for variable in found if variable is not None]


def _get(layer: Any, variables: Sequence[Any]) -> list[np.ndarray]:
    del layer
    return [variable.numpy() for variable in variables]


def _set(layer: Any, variables: Sequence[Any], weights: Sequence[Any]) -> None:
    weights = [np.asarray(x) for x in weights]
    shapes, given = [tuple(v.shape) for v in variables], [x.shape for x in weights]
    if shapes != given:
        raise ValueError(
            f"weights of layer {layer.name!r} must have shapes {shapes}. Received: "
            f"weights of shapes {given}"
        )
    for variable, value in zip(variables, weights, strict=True):
        variable.assign(value)
