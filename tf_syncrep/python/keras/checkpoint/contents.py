"""What a checkpoint of a Keras model holds, and under which names.

* `tables/<table>` is a table of DistributedEmbedding, of shape `[vocabulary, width]`.
  With P parts the shape is `[ceil(vocabulary / P), P, width]`, and row `r` is at
  `[r // P, r % P]`, so that `reshape([-1, width])[:vocabulary]` is the table.
* `tables/<table>/<part>-of-<parts>/changed` has the rows in use of a part of a table
  that grows, as `checkpoint.keyed_tables` describes it; `keys/tables/<table>` and
  `uses/tables/<table>` are beside the slots.
* `variables/<path>` is any other variable of the model. This includes the table of a
  layer of one table, and the states of the layers' random generators. Layers whose
  names Keras has generated are numbered by their order in the model, not in the
  process: `dense`, `dense_1`.
* `slots/<slot>/<name>` is a slot of one of these.
* `optimizer/<name>` is any other variable of the optimizer: `iterations`,
  `learning_rate`.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import (
    Contents,
    OfPart,
    Piece,
    cpu_of,
    is_table,
    whole_piece,
)
from tf_syncrep.python.checkpoint.keyed_tables import KeyedPart, KeyedTable
from tf_syncrep.python.embedding import dynamic_lookup
from tf_syncrep.python.embedding.layout import DynamicSlab
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.optimizer_slots import (
    are_rows,
    slots_by_variable,
    variables_of,
)
from tf_syncrep.python.keras.parts import members_of, optimizers_of
from tf_syncrep.python.keras.tables.fixed_tables import Tables
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.row_slots import row_slots
from tf_syncrep.python.keras.tables.stacked_tables import (
    StackedTables,
    tables_with,
)
from tf_syncrep.python.keras.tables.trainers import refuse_legacy


class ModelContents:
    """The contents of a model's checkpoints, made anew if it has other variables.

    `user`: the class that users name, for errors.
    """

    def __init__(self, user: str, with_optimizers: bool = True):
        """Knows no model yet."""
        self._user = user
        self._with_optimizers = with_optimizers
        self._contents: Contents | None = None
        self._contents_of: list[Any] = []

    def of(self, model: Any) -> Contents:
        """Returns the contents of a model; raises ValueError if it is not built."""
        if not has_weights(model):
            raise ValueError(
                f"{self._user} needs a model that is built: call it on a batch, or "
                f"give it an Input. Received: {model.name!r}, which has no weights yet"
            )
        # These are kept, since another object may get the address of one that is gone.
        owners = [model.optimizer, *model.variables]
        if self._contents is None or [*map(id, owners)] != [
            *map(id, self._contents_of)
        ]:
            self._contents = contents_of(model, self._with_optimizers)
            self._contents_of = owners
        return self._contents


def compiled_model(model: Any, user: str) -> Any:
    """Returns a model if it is one that an optimizer trains; else raises ValueError."""
    if model is None:
        raise ValueError(
            f"{user} needs a model: pass it as a callback to `fit`, or `model=`."
        )
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            f"{user} needs a model that is compiled with the optimizer that trains it. "
            f"Received: {model.name!r}, which has none"
        )
    return model


def has_weights(model: Any) -> bool:
    """Returns whether the layers are built; Keras says so only of those with `call`."""
    try:
        return bool(model.weights)
    except ValueError:  # A Sequential of Keras 2 raises it if it is not built.
        return False


def iterations_of(model: Any) -> int:
    """Returns how many updates a model's optimizer has made."""
    with compat.apart_from_closures():
        return int(compat.native(model.optimizer.iterations).read_value())


def contents_of(model: Any, with_optimizers: bool = True) -> Contents:
    """Finds the contents of a model's checkpoint.

    `model`: a built model; if it is compiled, its optimizer is built, too.
    """
    contents = Contents()
    variables = _variables_of(model)
    optimizers = list(optimizers_of(model)) if with_optimizers else []
    if with_optimizers and getattr(model, "optimizer", None) is not None:
        refuse_legacy(
            model.optimizer,
            "The model of a checkpoint must not be trained by an optimizer of "
            "tf.keras.optimizers.legacy, whose slots would not be in it",
        )
    for optimizer in optimizers:
        _build(optimizer, model)
    if with_optimizers:  # Some are made when another one is built.
        optimizers = list(optimizers_of(model))
    slots: dict[int, dict[str, Any]] = {}
    trainers: dict[int, str] = {}
    for optimizer in optimizers:
        for key, found in slots_by_variable(optimizer, variables).items():
            slots.setdefault(key, {}).update(found)
            if found and not members_of(optimizer):
                trainers[key] = type(optimizer).__name__
    renamed = names_by_order(model)
    for tables in tables_with(DynamicTables, [compat.native(v) for v in variables]):
        row_slots(optimizers, tables)  # which refuses what could not be restored
    trained = {id(compat.native(v)) for v in model.trainable_variables}
    _add_variables(contents, variables, renamed, slots, trained, trainers)
    states = list(trainer.random_states(model))
    for name, (_, state) in _by_name(
        states, lambda x: renamed.get(x[0].name, x[0].name)
    ):
        contents.add_whole(f"variables/{name}/random_generator", state)
    of_variables = {id(slot) for found in slots.values() for slot in found.values()}
    others = {
        id(compat.native(v)): v
        for optimizer in optimizers
        for v in _optimizer_variables(optimizer)
        if id(compat.native(v)) not in of_variables
    }
    for name, variable in _by_name(list(others.values()), _name):
        contents.add_whole(f"optimizer/{name}", compat.native(variable))
    return contents


def numbered_stems(model: Any) -> dict[str, bool]:
    """Returns what Keras has named layers after, and if it made them in their order."""
    numbers: dict[str, list[int]] = {}
    for name in names_by_order(model):
        stem, number = stem_of(name)
        numbers.setdefault(stem, []).append(number)
    return {stem: found == sorted(found) for stem, found in numbers.items()}


def stem_of(name: str) -> tuple[str, int]:
    """Returns what Keras has named a layer after, and its number."""
    match = re.fullmatch(r"(.+)_([1-9]\d*)", name)
    return (match[1], int(match[2])) if match else (name, 0)


def _free_all(tables: DynamicTables, part: Any) -> None:
    """Frees all rows of a part, in the slots of other models' optimizers, too."""
    tables.reset(part, tables.row_slots()[id(part.vectors)])


def _add_variables(
    contents: Contents,
    variables: Sequence[Any],
    renamed: Mapping[str, str],
    slots: Any,
    trained: Container[int],
    trainers: Mapping[int, str],
) -> None:
    """Adds variables; tables are added in the place of their first part."""
    natives = [compat.native(v) for v in variables]
    owners = {
        id(compat.native(part)): tables
        for tables in tables_with(StackedTables, natives)
        for part in tables.all_variables()
    }
    # By the id of an owner, this has the owner, which is either several tables or a
    # single variable, and a name for each table.
    named: dict[int, tuple[Any, dict[str, str]]] = {}
    for variable, native in zip(variables, natives, strict=True):
        path, tables = f"variables/{_path(variable, renamed)}", owners.get(id(native))
        if tables is None:
            named[id(native)] = native, {"": path}
        elif id(tables) not in named:
            within = path.rsplit("/", 1)[0] if tables.named_by_layer else "tables"
            names = {x: f"{within}/{tables.key_in_files(x)}" for x in tables.by_name}
            named[id(tables)] = tables, names
    flat = [(keys, x) for _, keys in named.values() for x in keys]
    for name, (keys, x) in list(_by_name(flat, lambda pair: pair[0][pair[1]])):
        keys[x] = name
    for owner, keys in named.values():
        for x, name in keys.items():
            part = owner
            if isinstance(owner, StackedTables):
                contents.tables.add(name)
                part = compat.native(owner.trained(owner.slab_of(x))[0])
            if id(part) in trainers:
                contents.trainers[name] = trainers[id(part)]
        if isinstance(owner, Tables):
            _add_slabs(contents, owner, keys, slots, trained)
        elif isinstance(owner, DynamicTables):
            for slab in owner.slabs:
                _add_dynamic_slab(contents, owner, slab, keys, slots, trained)
        else:
            _add_variable(contents, keys[""], owner, slots.get(id(owner), {}))
            if id(owner) in trained:
                contents.weights.append(keys[""])


def _add_slabs(
    contents: Contents,
    tables: Tables,
    keys: Mapping[str, str],
    slots: Any,
    trained: Container[int],
) -> None:
    """Adds the parts of tables, with a key for each table."""
    for slab in tables.slabs:
        for part_number, part in enumerate(tables.parts(slab)):
            by_rows, others = _by_rows(slots.get(id(part), {}), part)
            pieces = []
            for piece in slab.parts(part_number):
                name = keys[piece.table.name]
                names = (name, *(f"slots/{kind}/{name}" for kind in by_rows))
                if id(part) in trained:
                    contents.weights.append(name)
                first = (part_number - slab.first_row(piece.table)) % slab.num_parts
                vocabulary = piece.table.vocabulary_size
                pieces.append(
                    Piece(first, piece.num_rows, slab.num_parts, vocabulary, names)
                )
            contents.add_group([part, *by_rows.values()], pieces)
            names = [keys[table.name] for table in slab.tables]
            _add_of_part(contents, others, names, part_number, slab.num_parts)


def _add_dynamic_slab(
    contents: Contents,
    tables: DynamicTables,
    slab: DynamicSlab,
    keys: Mapping[str, str],
    slots: Any,
    trained: Container[int],
) -> None:
    """Adds the parts of tables that grow, with a key for each table."""
    parts = tables.parts(slab)
    divided = [_by_rows(slots.get(id(x.vectors), {}), x.vectors) for x in parts]
    groups = [
        (part.vectors, part.keys, part.uses, *by_rows.values())
        for part, (by_rows, _) in zip(parts, divided, strict=True)
    ]
    kinds = list(divided[0][0])
    keyed = {}
    for table in slab.tables:
        name = keys[table.name]
        beside = [f"slots/{kind}/{name}" for kind in kinds]
        arrays = (name, f"keys/{name}", f"uses/{name}", *beside)
        keyed[table.name] = KeyedTable(
            name,
            arrays,
            tuple(
                KeyedPart(
                    cpu_of(part.vectors),
                    group,
                    slab.capacity(table),
                    functools.partial(_free_all, tables, part)
                    if table is slab.tables[0]
                    else _nothing,  # the first table's call has freed all rows
                    functools.partial(tables.add_rows, table.name, part),
                )
                for part, group in zip(parts, groups, strict=True)
            ),
            functools.partial(dynamic_lookup.owners, num_parts=slab.num_parts),
        )
        contents.keyed_tables.append(keyed[table.name])
    for part_number, group in enumerate(groups):
        pieces = []
        for table in slab.tables:
            names = keyed[table.name].part_names(part_number)
            if id(group[0]) in trained:
                contents.weights.append(names[0])
            room = slab.capacity(table)
            pieces.append(Piece(0, room, 1, room, names, uses=2))
        contents.add_group(group, pieces)
        names = [keys[table.name] for table in slab.tables]
        _add_of_part(
            contents, divided[part_number][1], names, part_number, slab.num_parts
        )


def _nothing() -> None:
    """Does nothing."""


def _add_variable(contents: Contents, name: str, variable: Any, slots: Any) -> None:
    by_rows, others = _by_rows(slots, variable)
    named = {name: variable, **{f"slots/{k}/{name}": v for k, v in by_rows.items()}}
    if is_table(variable):
        piece = whole_piece(variable.shape[0], list(named))
        contents.add_group(list(named.values()), [piece])
    else:
        for key, value in named.items():
            contents.add_whole(key, value)
    # They are saved as those of one part, since Keras' own layer has such a variable,
    # too.
    _add_of_part(contents, others, [name], 0, 1)


def _by_rows(slots: Mapping[str, Any], variable: Any) -> list[dict[str, Any]]:
    """Divides the slots of a variable into those with its rows, and all others."""
    return [
        {kind: x for kind, x in slots.items() if are_rows(x, variable) == has_rows}
        for has_rows in (True, False)
    ]


def _add_of_part(
    contents: Contents,
    slots: Mapping[str, Any],
    names: Sequence[str],
    part_number: int,
    num_parts: int,
) -> None:
    """Adds slots without rows of a part of tables with these names."""
    for kind, slot in slots.items():
        of_tables = tuple(f"slots/{kind}/{name}" for name in names)
        contents.add_of_part(OfPart(slot, of_tables, part_number, num_parts))


def _variables_of(model: Any) -> list[Any]:
    of_metrics = {id(v) for metric in model.metrics for v in metric.variables}
    found = {id(v): v for v in model.variables if id(v) not in of_metrics}
    return list(found.values())


def _build(optimizer: Any, model: Any) -> None:
    """Makes an optimizer's variables, which Keras would make at the first step."""
    # Only in Keras 3 is it there, and if it is built, its scale would begin anew.
    scaling = getattr(tf.keras.optimizers, "LossScaleOptimizer", ())
    if isinstance(optimizer, scaling) and optimizer.built:
        return
    if optimizer is getattr(model, "optimizer", None) and model.trainable_variables:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def _optimizer_variables(optimizer: Any) -> Sequence[Any]:
    variables = [*variables_of(optimizer)]
    # Keras 2 does not list the learning rate among the variables.
    rate = getattr(optimizer, "learning_rate", None)
    if isinstance(rate, tf.Variable) and all(rate is not v for v in variables):
        variables.append(rate)
    return variables


def _by_name(variables: Sequence[Any], name_of: Any) -> Iterator[tuple[str, Any]]:
    """Yields variables with distinct names, in their order."""
    seen: collections.Counter[str] = collections.Counter()
    for variable in variables:
        name = name_of(variable)
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), variable


def names_by_order(model: Any) -> dict[str, str]:
    """Replaces the names that Keras has generated for layers and seed generators.

    Keras numbers the layers of a class within the process; these names number those
    within the model.
    """
    counts: collections.Counter[str] = collections.Counter()
    names: dict[str, str] = {}
    for part in [*trainer.layers_of(model), *trainer.seed_generators(model)]:
        stem = snake_case(type(part).__name__)
        if part.name in names or not re.fullmatch(rf"{stem}(_\d+)?", part.name):
            continue
        names[part.name] = f"{stem}_{counts[stem]}" if counts[stem] else stem
        counts[stem] += 1
    return names


def snake_case(name: str) -> str:
    """Converts a class's name as Keras does for names of layers."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _path(variable: Any, renamed: Mapping[str, str]) -> str:
    path = getattr(variable, "path", variable.name).split(":")[0]
    return _renamed(path, renamed)


def _renamed(path: str, renamed: Mapping[str, str]) -> str:
    return "/".join(renamed.get(name, name) for name in path.split("/"))


def _name(variable: Any) -> str:
    """Returns a variable's name without that of its optimizer.

    Optimizers of the same class may have different names. A variable without a name has
    one that Keras numbers within the process.
    """
    name = _path(variable, {}).split("/", 1)[-1]
    return "variable" if re.fullmatch(r"variable_\d+", name) else name
