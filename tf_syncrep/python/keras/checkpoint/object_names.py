"""The names that variables of a checkpoint of `tf.train.Checkpoint` are taken by.

They are made of the names that Keras gave to the variables. Layers that Keras numbers
within a process are numbered within the checkpoint.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tf_syncrep.python.keras.checkpoint.contents import stem_of


class Slots(NamedTuple):
    """The variables of optimizers, by their keys.

    `of`: keys of slots, by kind, by the key of their variable. `trainers`: the names of
    the optimizers that they are of, by the same. `others`: names of those that are no
    slots of a known variable.
    """

    of: dict[str, dict[str, str]]
    trainers: dict[str, str]
    others: dict[str, str]


def names_of_variables(
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


def slots_of(
    of_optimizers: Mapping[str, str], of_variables: Mapping[str, str]
) -> Slots:
    """Tells what the optimizers' variables are; both are full names by keys.

    `of_variables`: those that are known.
    """
    keys = {name: key for key, name in of_variables.items()}
    references = sorted(keys, key=len, reverse=True)
    slots = Slots({}, {}, {})
    for key, name in of_optimizers.items():
        optimizer, kind, reference = _slot(name, references)
        if reference:
            slots.of.setdefault(keys[reference], {})[kind] = key
            slots.trainers[keys[reference]] = optimizer
        else:
            slots.others[key] = f"optimizer/{name.split('/', 1)[-1]}"
    return slots
