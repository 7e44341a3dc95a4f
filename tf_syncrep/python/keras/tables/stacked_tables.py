"""What tables of fixed size and tables that grow have in common.

Optimizers, files and checkpoints are given variables, and find here the tables that lie
in them.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables.setting import keep

# Under mixed precision Keras 3's own layer casts its table, and Keras 2's does not.
CASTING: dict[str, Any] = {} if compat.IS_KERAS_3 else {"experimental_autocast": False}
# How many bytes are read or written at a time.
CHUNK_BYTES = 64 * 2**20
# The name in files of a table that is the only one of its layer.
ONLY = "embeddings"


class _PartsBySlab(dict[str, list[Any]]):
    """The variables of each slab by its name, once they are made."""

    def __missing__(self, name: str) -> list[Any]:
        raise ValueError(
            "Tables are made when their layer is built: call the layer on ids, or its "
            f"`build()`, before. Received: a layer that is not built, with {name!r}"
        )


class StackedTables:
    """Tables in slabs, whose parts are variables of a layer.

    `named_by_layer`: whether it is the one table of its layer, which files name below
    the layer, as they do variables; otherwise they use the tables' own names.
    """

    #: What follows the part's name in the names of each part's variables.
    kinds: tuple[str, ...] = ("",)
    #: The optimizers that were built with a part; None for tables of fixed size.
    trainers: weakref.WeakSet[Any] | None = None
    #: What stands in for the tables by name while a model is traced for serving.
    served: Mapping[str, Any] | None = None

    def __init__(self, slabs: Sequence[Any], named_by_layer: bool = False):
        """Makes no variables yet."""
        self.named_by_layer = named_by_layer
        self._parts = _PartsBySlab()
        self.slabs = list(slabs)
        self.by_name = {t.name: t for slab in self.slabs for t in slab.tables}
        self._slab_of = {t.name: slab for slab in self.slabs for t in slab.tables}

    def slab_of(self, name: str) -> Any:
        """Returns the slab that a table is in."""
        return self._slab_of[name]

    def name_in_files(self, name: str) -> str:
        """Returns a table's name in files, whatever name its layer got from Keras."""
        return ONLY if self.named_by_layer else name

    def key_in_files(self, name: str) -> str:
        """Returns the name where a slash would separate folders."""
        return as_key(self.name_in_files(name))

    @property
    def variable_names(self) -> list[str]:
        """The names with which the variables were made."""
        return [
            slab.part_name(part_number) + kind
            for slab in self.slabs
            for part_number in range(slab.num_parts)
            for kind in self.kinds
        ]

    def trained(self, slab: Any) -> list[Any]:
        """Returns Keras' variables with a slab's vectors; to be overridden."""
        raise NotImplementedError

    def all_trained(self) -> list[Any]:
        """Returns the variables with the vectors of all slabs, as Keras has them."""
        return [part for slab in self.slabs for part in self.trained(slab)]

    def all_variables(self) -> list[Any]:
        """Returns all variables, as Keras has them."""
        return self.all_trained()


def as_key(name: str) -> str:
    """Returns a table's name where a slash would separate folders."""
    return name.replace("%", "%25").replace("/", "%2F")


def chunks(rows: Any, variable: Any) -> Iterator[Any]:
    """Yields some at a time of what stands for rows of a variable."""
    size = max(1, CHUNK_BYTES // (math.prod(variable.shape[1:]) * variable.dtype.size))
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]


def write_rows(variable: Any, rows: np.ndarray, values: np.ndarray) -> None:
    """Sets the values of rows of one variable."""
    keep(variable, rows)
    for some in chunks(np.arange(len(rows)), variable):
        variable.scatter_update(
            tf.IndexedSlices(
                tf.cast(values[some], variable.dtype), tf.constant(rows[some])
            )
        )


_Kind = TypeVar("_Kind", bound=StackedTables)

# All tables whose variables are made. A layer may be built while another thread looks.
_made: weakref.WeakSet[StackedTables] = weakref.WeakSet()
_lock = threading.Lock()


def note_made(tables: StackedTables) -> None:
    """Makes tables known here, once their variables are made."""
    if tables.slabs:
        with _lock:
            _made.add(tables)


def all_made() -> list[StackedTables]:
    """Returns all tables whose variables are made."""
    with _lock:
        return list(_made)


class Placed(NamedTuple):
    """A variable with vectors, and its number among the parts of a slab."""

    tables: StackedTables
    slab: Any
    number: int
    variable: Any
    native: Any


def _placed(kind: type[StackedTables] = StackedTables) -> Iterator[Placed]:
    """Yields the variables with vectors of all tables of a kind, slab by slab."""
    for tables in all_made():
        for slab in tables.slabs if isinstance(tables, kind) else ():
            for number, variable in enumerate(tables.trained(slab)):
                yield Placed(tables, slab, number, variable, compat.native(variable))


def tables_with(
    kind: type[_Kind], variables: Sequence[Any], trained_only: bool = False
) -> list[_Kind]:
    """Finds tables of a kind whose variables are all in `variables`, in their order."""
    place = {id(variable): i for i, variable in enumerate(variables)}
    found = []
    for tables in all_made():
        if isinstance(tables, kind):
            wanted = tables.all_trained() if trained_only else tables.all_variables()
            own = [id(compat.native(x)) for x in wanted]
            places = [place[x] for x in own if x in place]
            if places and (trained_only or len(places) == len(own)):
                found.append((places[0], tables))
    return [tables for _, tables in sorted(found, key=lambda pair: pair[0])]


def trained_by(optimizer: Any) -> list[StackedTables]:
    """Returns those tables that an optimizer has slots of, in its order."""
    found = {
        optimizer.slot_index(x.variable): x.tables
        for x in _placed()
        if optimizer.has_slots_of(x.variable)
    }
    return list(dict.fromkeys(found[place] for place in sorted(found)))


def places_of(variables: Sequence[Any]) -> list[Placed | None]:
    """Returns the places of variables, as Keras has them; None for any other one."""
    found = {id(x.native): x for x in _placed()}
    return [found.get(id(compat.native(variable))) for variable in variables]


def own_slabs_of(variables: Sequence[Any]) -> list[Any]:
    """Finds the slab of each variable; None if it has no optimizer of its own."""
    slabs = [place and place.slab for place in places_of(variables)]
    return [slab if slab and slab.optimizer is not None else None for slab in slabs]


def is_part(variable: tf.Variable, kind: type[StackedTables] = StackedTables) -> bool:
    """Returns whether a variable has vectors of tables, or of one kind of tables."""
    return any(x.native is variable for x in _placed(kind))
