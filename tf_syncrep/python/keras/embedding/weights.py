"""Weights and copies of layers that do not depend on the number of a table's parts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import layout
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables.fixed_tables import Tables
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.setting import being_set
from tf_syncrep.python.keras.tables.stacked_tables import StackedTables, tables_with


def show_tables_whole() -> None:
    """Makes Keras' layers and models exchange tables in parts as whole arrays.

    So the result of `get_weights` in one process can be set on a cluster, and the other
    way round. Tables that grow are keys, uses and vectors of their rows in use. For
    layers and models without a table in parts or one that grows nothing changes.
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


class _Variable:
    """A variable in the form in which layers give and take it: one or more arrays."""

    num_arrays = 1

    def __init__(self, variable: Any):
        self._variable = variable

    def shapes(self, arrays: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
        """Returns the shapes that arrays must have; `arrays`: those that are given."""
        del arrays
        return [tuple(self._variable.shape)]

    def read(self) -> list[np.ndarray]:
        return [self._variable.numpy()]

    def check(self, *arrays: np.ndarray) -> None:
        """Raises ValueError if arrays of these shapes cannot be written."""

    def write(self, array: np.ndarray) -> None:
        self._variable.assign(array)


class _Slab(_Variable):
    """Stacked tables in the form of the one variable that they are in one process."""

    def __init__(self, tables: Tables, slab: layout.Slab):
        self._tables, self._slab = tables, slab

    def shapes(self, arrays: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
        del arrays
        return [(self._slab.num_rows, self._slab.width)]

    def read(self) -> list[np.ndarray]:
        values = [self._tables.read(x.name) for x in self._slab.tables]
        return [np.concatenate(values)]

    def write(self, array: np.ndarray) -> None:
        for table in self._slab.tables:
            first = self._slab.first_row(table)
            rows = array[first : first + table.vocabulary_size]
            self._tables.write(table.name, rows)


class _GrowingTable(_Variable):
    """The keys, uses and vectors of the rows in use of a table that grows."""

    num_arrays = 3

    def __init__(self, tables: DynamicTables, name: str):
        self._tables, self._name = tables, name

    def shapes(self, arrays: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
        size = arrays[0].size if arrays else 0
        return [(size,), (size, 2), (size, self._tables.by_name[self._name].width)]

    def read(self) -> list[np.ndarray]:
        rows = self._tables.rows_of(self._name)
        return [rows.keys, rows.uses, self._tables.values_of(self._name, rows)]

    def check(self, *arrays: np.ndarray) -> None:
        keys, _, vectors = arrays
        self._tables.checked(self._name, (keys, vectors))

    def write(self, *arrays: np.ndarray) -> None:
        keys, uses, vectors = arrays
        self._tables.restore(self._name, keys, uses, vectors)


def _instead_of(stock, ours):
    @functools.wraps(stock)
    def method(self, *args, **kwargs):
        natives = [compat.native(v) for v in self.weights]
        # All of a slab is in the place of its first part.
        of_slabs: dict[int, list[_Variable]] = {}
        for tables in tables_with(StackedTables, natives):
            of_slabs |= {id(compat.native(x)): [] for x in tables.all_variables()}
            for slab in tables.slabs:
                first = id(compat.native(tables.trained(slab)[0]))
                if isinstance(tables, DynamicTables):
                    of_slabs[first] = [
                        _GrowingTable(tables, table.name) for table in slab.tables
                    ]
                elif isinstance(tables, Tables):
                    of_slabs[first] = [_Slab(tables, slab)]
        if all(of_slabs.values()):  # No slab is in several variables.
            return stock(self, *args, **kwargs)
        found = [of_slabs.get(id(x), [_Variable(x)]) for x in natives]
        return ours([x for several in found for x in several], *args, **kwargs)

    return method


def _get(variables):
    return [array for variable in variables for array in variable.read()]


def _set(variables, weights):
    given = [np.asarray(x) for x in weights]
    shapes, arrays, end = [], [], 0
    for variable in variables:
        begin, end = end, end + variable.num_arrays
        arrays.append(given[begin:end])
        shapes += variable.shapes(arrays[-1])
    if shapes != [x.shape for x in given]:
        raise ValueError(
            f"weights must have shapes {shapes}. Received: weights of shapes "
            f"{[x.shape for x in given]}"
        )
    # All are checked before anything is written.
    for variable, of_variable in zip(variables, arrays, strict=True):
        variable.check(*of_variable)
    with being_set:
        for variable, of_variable in zip(variables, arrays, strict=True):
            variable.write(*of_variable)
