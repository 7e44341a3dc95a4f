"""Weights and copies of layers that do not depend on the number of a table's parts."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import layout
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables.setting import being_set
from tf_syncrep.python.keras.tables.stacked_tables import tables_with
from tf_syncrep.python.keras.tables.tables import Tables


def show_tables_whole() -> None:
    """Makes Keras' layers and models exchange tables in parts as whole arrays.

    So the result of `get_weights` in one process can be set on a cluster, and the other
    way round. For layers and models without a table in parts nothing changes.
    """
    layers = tf.keras.layers.Layer
    layers.get_weights = _instead_of(layers.get_weights, _get)
    layers.set_weights = _instead_of(layers.set_weights, _set)


def made_again(
    layer_class: Any, config: dict[str, Any], weights: list[np.ndarray] | None
) -> Any:
    """Makes a layer of its class, and what `get_config` and `get_weights` returned.

    Copies and pickles of an Embedding consist of these in any Keras, since Keras 2
    cannot pickle variables, and tables in parts cannot be copied. `weights` is None if
    the layer was not built.
    """
    layer = layer_class.from_config(config)
    if weights is not None:
        layer.build(None)
        layer.set_weights(weights)
    return layer


def loaded_again(
    layer_class: Any, config: dict[str, Any], store: dict[str, np.ndarray] | None
) -> Any:
    """Makes a layer of what it saves in files, where tables lie in no parts.

    Tables that grow have their rows in use there alone. `store` is None if the layer
    was not built.
    """
    layer = layer_class.from_config(config)
    if store is not None:
        layer.build(None)
        layer.load_own_variables(store)
    return layer


def reduced(layer: Any) -> Any:
    """Returns what `__reduce__` of a layer has to, for `loaded_again`."""
    store: dict[str, np.ndarray] | None = {} if layer.built else None
    if store is not None:
        layer.save_own_variables(store)
    return loaded_again, (type(layer), layer.get_config(), store)


class _Slab:
    """Stacked tables in the form of the one variable that they are in one process."""

    def __init__(self, tables: Tables, slab: layout.Slab):
        self._tables, self._slab = tables, slab
        self.shape = (slab.num_rows, slab.width)

    def numpy(self) -> np.ndarray:
        return np.concatenate([self._tables.read(x.name) for x in self._slab.tables])

    def assign(self, values: Any) -> None:
        for table in self._slab.tables:
            first = self._slab.first_row(table)
            rows = values[first : first + table.vocabulary_size]
            self._tables.write(table.name, rows)


def _instead_of(stock, ours):
    @functools.wraps(stock)
    def method(self, *args, **kwargs):
        natives = [compat.native(v) for v in self.weights]
        slab_of = {
            id(part): _Slab(tables, slab) if part_number == 0 else None
            for tables in tables_with(Tables, natives)
            for slab in tables.slabs
            for part_number, part in enumerate(tables.parts(slab))
        }
        found = [slab_of.get(id(native), native) for native in natives]
        wholes = [x for x in found if x is not None]
        if len(wholes) == len(found):  # No slab is in several parts.
            return stock(self, *args, **kwargs)
        return ours(wholes, *args, **kwargs)

    return method


def _get(variables):
    return [variable.numpy() for variable in variables]


def _set(variables, weights):
    weights = [np.asarray(x) for x in weights]
    shapes, given = [tuple(v.shape) for v in variables], [x.shape for x in weights]
    if shapes != given:
        raise ValueError(
            f"weights must have shapes {shapes}. Received: weights of shapes {given}"
        )
    with being_set:
        for variable, value in zip(variables, weights, strict=True):
            variable.assign(value)
