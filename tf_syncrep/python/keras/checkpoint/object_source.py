"""Checkpoints of `tf.train.Checkpoint`, whose names are paths of attributes.

They also have the names that Keras gave to the variables: a warm start's are made of
these. Layers that Keras numbers within a process are numbered within the checkpoint.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from tf_syncrep.python.checkpoint.contents import Group, Share
from tf_syncrep.python.checkpoint.directory import DamagedError, value_of
from tf_syncrep.python.checkpoint.source import Source, without_part
from tf_syncrep.python.keras.checkpoint.contents import stem_of
from tf_syncrep.python.keras.compat.object_graph import numbers_of_slots, objects_in

# In the paths of what a DistributedEmbedding saves of its tables.
_TABLES = re.compile("/_saved(_dynamic)?_tables/")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class ObjectSource(Source):
    """The variables of the objects, by the names of a Keras model's checkpoint."""

    def __init__(self, prefix: str, trainers: Iterable[str], stems: Mapping[str, bool]):
        """Reads what is in the files, and no values.

        `trainers`: classes of the model's optimizers. `stems`: as of `numbered_stems`.
        Raises ValueError: it has tables of a DistributedEmbedding, of which a variable
        holds several. Raises DamagedError: the objects cannot be read.
        """
        super().__init__([prefix])
        try:
            objects = objects_in(self.readers[prefix])
        except (DamagedError, DecodeError) as error:
            raise DamagedError(f"{prefix} cannot be read: {error}") from error
        of_variables: dict[str, str] = {}
        of_optimizers: dict[str, str] = {}
        slots = numbers_of_slots(objects)
        for number, node in enumerate(objects):
            for x in node.attributes:
                if _TABLES.search(x.checkpoint_key):
                    raise ValueError(
                        "`source` must not be a checkpoint of tf.train.Checkpoint with "
                        "tables of a DistributedEmbedding: restore it into a model like"
                        " the one that it is of, and save that by tfs.keras.Checkpoint."
                        f" Received: source={prefix!r}"
                    )
                key, tail, _ = x.checkpoint_key.partition(_VALUE)
                if tail and key != "save_counter":
                    (of_optimizers if number in slots else of_variables)[key] = (
                        x.full_name
                    )
        names = _names_of_variables(of_variables, stems)
        keys = {of_variables[key]: key for key in names}
        references = sorted(keys, key=len, reverse=True)
        classes = {_plain(x): x for x in trainers}
        for key, name in of_optimizers.items():
            optimizer, kind, reference = _slot(name, references)
            if not reference:
                names[key] = f"optimizer/{name.split('/', 1)[-1]}"
                continue
            of = names[keys[reference]]
            shapes = (self.shapes[x + _VALUE] for x in (key, keys[reference]))
            names[key] = f"slots/{kind}/{of}{'' if _are_rows(*shapes) else '/0-of-1'}"
            self.trainers[of] = classes.get(_plain(optimizer), optimizer)
        counts = collections.Counter(names.values())
        self._keys = {}
        for key in (*of_variables, *of_optimizers):
            # A name that two have tells neither.
            is_known = key in names and counts[names[key]] == 1
            self._keys[names[key] if is_known else f"variables/{key}"] = key + _VALUE
        shapes, dtypes = self.shapes, self._dtypes
        self.shapes = {name: shapes[key] for name, key in self._keys.items()}
        self._dtypes = {name: dtypes[key] for name, key in self._keys.items()}
        self.names = {*map(without_part, self._keys)}

    def take(self, calls: Any, shares: Mapping[str, Share]) -> None:
        """Has each task read its share."""
        by_key = {device: self._by_key(share) for device, share in shares.items()}
        super().take(calls, by_key)

    def _by_key(self, share: Share) -> Share:
        keys = {**self._keys, "": ""}
        groups = [
            Group(
                group.variables,
                tuple(
                    dataclasses.replace(x, names=tuple(keys[name] for name in x.names))
                    for x in group.pieces
                ),
            )
            for group in share.groups
        ]
        wholes = {keys[name]: variable for name, variable in share.wholes.items()}
        return Share(share.device, groups, wholes)

    def read_range(
        self, like: Sequence[Any], names: Sequence[str], begin: int, num: int, of: int
    ) -> list[Any]:
        """Reads rows next to each other."""
        keys = [self._keys[name] for name in names]
        return super().read_range(like, keys, begin, num, of)

    def read(self, name: str) -> np.ndarray:
        """Reads a variable."""
        return value_of(self.readers[self.path], self._keys[name])


def _names_of_variables(
    full_names: Mapping[str, str], stems: Mapping[str, bool]
) -> dict[str, str]:
    """Returns the names of those variables that can be told, by their keys."""
    counts = collections.Counter(full_names.values())
    layers = {key: name.split("/")[:-1] for key, name in full_names.items()}
    numbers: dict[str, set[int]] = collections.defaultdict(set)
    for stem, number in {stem_of(x) for found in layers.values() for x in found}:
        if stem in stems:
            numbers[stem].add(number)
    new: dict[str, str] = {}
    for stem, found in numbers.items():
        for i, number in enumerate(sorted(found)):
            new[f"{stem}_{number}" if number else stem] = f"{stem}_{i}" if i else stem
    names = {}
    for key, name in full_names.items():
        is_in_order = all(stems.get(stem_of(x)[0], True) for x in layers[key])
        if name and counts[name] == 1 and is_in_order:
            path = [*(new.get(x, x) for x in layers[key]), name.split("/")[-1]]
            names[key] = "/".join(["variables", *path])
    return names


def _slot(name: str, references: Collection[str]) -> tuple[str, str, str]:
    """Returns a slot's optimizer, its kind and the name of its variable, or none.

    As `optimizer_slots` describes; the longest names come first.
    """
    for reference in references:
        if name.endswith(f"/{reference}"):  # of Keras 2
            *_, optimizer, kind = ["", *name.removesuffix(f"/{reference}").split("/")]
            return optimizer, kind, reference
        optimizer, _, slot = name.rpartition("/")
        if slot.startswith(head := reference.replace("/", "_") + "_"):
            return optimizer.split("/")[-1], slot.removeprefix(head), reference
    return "", "", ""


def _plain(optimizer: str) -> str:
    """Returns what is common to names of a class's optimizers, and the class's."""
    return stem_of(optimizer)[0].replace("_", "").lower()


def _are_rows(slot: Sequence[int], variable: Sequence[int]) -> bool:
    return slot == variable or (
        len(variable) > 1 and slot == [variable[0], *([1] * (len(variable) - 1))]
    )
