"""The names of a checkpoint's variables, for files of Keras, which number them.

A file leads to a layer by the attributes of the model and of the layers around it. In
lists, layers are numbered by class. Files of Keras 3 have their names as well; in
others a layer is found by its class and its number.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.matching import Rename, renamed
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.contents import (
    names_by_order,
    snake_case,
    stem_of,
)
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.tables.stacked_tables import ONLY

# The attributes in which functional models have their layers, in Keras 3 and 2.
LAYERS = ("layers", "_layer_checkpoint_dependencies")


class Step(NamedTuple):
    """An attribute or a number on the way to a layer; `name`: its name, if known."""

    place: str
    name: str | None = None


class FileNames:
    """Finds in a model what the numbers in a file stand for."""

    def __init__(
        self, model: Any, contents: Contents, rename: Rename, listed: Sequence[Step]
    ):
        """Knows the layers of the model, and those of the file's model if it lists any.

        `rename`: the user's argument.
        """
        self._model, self._tables, self._rename = model, contents.tables, rename
        self._listed = _names_of(listed)
        by_order = names_by_order(model)
        self._by_name = {by_order.get(x.name, x.name): x for x in model.layers}
        self._by_place = _numbered(model.layers)
        alike = _names_of([Step(place, x.name) for place, x in self._by_place.items()])
        self._alike = {name: self._by_place[place] for place, name in alike.items()}
        self._names: dict[int, str] = {}
        for share in contents.shares:
            self._names |= {id(x): name for name, x in share.wholes.items()}
            for group in share.without_keyed().groups:
                self._names[id(group.variables[0])] = group.pieces[0].names[0]
        for table in contents.keyed_tables:
            self._names |= {id(x.variables[0]): table.name for x in table.parts}

    def __call__(self, way: Sequence[Step], key: str) -> str:
        """Returns the name of a variable by its number, or its table's name."""
        if not key.isdigit() and (key != ONLY or f"tables/{key}" in self._tables):
            return f"tables/{key}"
        is_listed = way[0].place in LAYERS and len(way) > 1
        outermost, *inner = way[1:] if is_listed else way
        layer = outermost.name or outermost.place
        if is_listed:
            layer = self._listed.get(outermost.place, layer)
        old = f"variables/{layer}"
        new = renamed(old, self._rename)
        if new != old:  # There may be a model's name before the layer's.
            found = self._by_name.get(new.split("/")[-1])
        elif not is_listed:  # in a model with attributes
            found = getattr(self._model, outermost.place, None)
        elif outermost.name:
            found = self._alike.get(layer)
        else:
            found = self._by_place.get(outermost.place)
        for step in inner:
            found = _within(found, step.place)
        names = [self._names.get(id(compat.native(x))) for x in _variables_of(found)]
        if key == ONLY:
            names = [*filter(None, names)]
        number = int(key) if key.isdigit() else 0
        name = names[number] if number < len(names) else None
        if name is None or (new != old and not name.startswith(f"{new}/")):
            return "/".join([old, *(x.place for x in inner), key])
        return name if new == old else old + name.removeprefix(new)


def _names_of(listed: Sequence[Step]) -> dict[str, str]:
    """Returns names of layers by their places, as checkpoints have them.

    Those to which Keras has given one are numbered in the order of the list.
    """
    names: dict[str, str] = {}
    counts: collections.Counter[str] = collections.Counter()
    for step in sorted(listed, key=lambda x: (stem_of(x.place)[1], x.place)):
        stem, name = stem_of(step.place)[0], step.name
        if name is not None and stem_of(name)[0] == stem:
            name = f"{stem}_{counts[stem]}" if counts[stem] else stem
            counts[stem] += 1
        names[step.place] = name or step.place
    return names


def _within(found: Any, place: str) -> Any:
    """Returns what is at a place of a layer or of a list; None if there is nothing."""
    if not isinstance(found, (list, tuple, dict)):
        return getattr(found, place, None)
    return _numbered(found.values() if isinstance(found, dict) else found).get(place)


def _numbered(layers: Iterable[Any]) -> dict[str, Any]:
    """Returns layers of a list by their numbers, each once."""
    counts: collections.Counter[str] = collections.Counter()
    found: dict[str, Any] = {}
    for layer in {id(x): x for x in layers}.values():
        stem = snake_case(type(layer).__name__)
        found[f"{stem}_{counts[stem]}" if counts[stem] else stem] = layer
        counts[stem] += 1
    return found


def _variables_of(layer: Any) -> list[Any]:
    is_layer = isinstance(layer, tf.keras.layers.Layer)
    return trainer.own_variables(layer) if is_layer else []
