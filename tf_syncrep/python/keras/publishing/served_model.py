"""A model as it is published: TensorFlow's own ops, and tables that can be updated.

The model is traced once, in the process that trains it. Tables without rows, and
variables of this process, take the places of those on parameter servers, so that saving
it writes some kilobytes and its dense variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.checkpoint.contents import Contents, Group
from tf_syncrep.python.embedding.layout import Table
from tf_syncrep.python.embedding.served_tables import (
    PublishedDenseTable,
    PublishedGrowingTable,
    PublishedTable,
    refuse_other_base,
)
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.tables.stacked_tables import StackedTables, tables_with
from tf_syncrep.python.serving.publications import (
    APPLY,
    BASE,
    VERSION,
    Rows,
    new_argument,
)

__all__ = ["ServedModel"]

_LOOKUP_TABLE = tf.saved_model.experimental.TrackableResource


class ServedModel:
    """A traced model, whose variables can be filled.

    `rows`: the tables of which rows are published, with the modules that have them in
    the SavedModel. `dense`: the other variables, by their names in files.
    """

    def __init__(
        self,
        model: Any,
        contents: Contents,
        input_signature: Any = None,
        dtype: tf.DType | None = None,
    ):
        """Traces a built model.

        `dtype`: that of the tables' vectors; None for those that are trained.
        """
        self._root = tf.Module()
        self._dtype = dtype
        self.rows: list[tuple[Rows, PublishedTable]] = []
        self.dense: dict[str, tf.Variable] = {}
        # The handles of stand-ins, by the ids of those of the model's variables.
        self._places: dict[int, tf.Tensor] = {}
        self._arguments: set[str] = {BASE, VERSION}
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self.version = tf.Variable(tf.constant(0, tf.int64), trainable=False)
        self._root.version = self.version
        groups = {
            id(group.variables[0]): group for s in contents.shares for group in s.groups
        }
        served = self._add_tables(model, groups)
        self._add_variables(contents, groups)
        with _served(served):
            traced, structure = _traced(model, input_signature)
        self._root.serve = self._with_own_variables(model, traced, structure)
        self._root.apply = self._apply()

    def save(self, folder: str) -> None:
        """Writes the SavedModel, with tables that have no rows."""
        tf.saved_model.save(
            self._root,
            folder,
            signatures={
                tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: self._root.serve,
                APPLY: self._root.apply,
            },
        )

    def describe(self) -> dict[str, Any]:
        """Returns what a manifest says of the arguments of `apply_delta`."""
        return {
            "tables": [dataclasses.astuple(rows) for rows, _ in self.rows],
            "dense": {name: self._argument_of[name] for name in self.dense},
        }

    def _add_tables(
        self, model: Any, groups: dict[int, Group]
    ) -> list[tuple[StackedTables, dict[str, Any]]]:
        """Makes stand-ins of tables; takes their groups away."""
        natives = [compat.native(v) for v in model.variables]
        served = []
        for tables in tables_with(StackedTables, natives):
            of_layer: dict[str, Any] = {}
            for slab in tables.slabs:
                parts = [compat.native(x) for x in tables.trained(slab)]
                found = [groups.pop(id(part)) for part in parts]
                for table, piece in zip(slab.tables, found[0].pieces, strict=True):
                    of_layer[table.name] = self._add_table(
                        table, piece.names[0], slab.num_parts
                    )
            served.append((tables, of_layer))
        return served

    def _add_table(self, table: Table, name: str, num_parts: int) -> PublishedTable:
        name = name.rsplit("/", 1)[0] if table.grows else name
        kind = PublishedGrowingTable if table.grows else PublishedTable
        trained = tf.as_dtype(table.dtype)
        module = kind([table.width], self._dtype or trained, num_parts)
        self._add_rows(name, module, trained)
        return module

    def _add_rows(self, name: str, module: PublishedTable, trained: tf.DType) -> None:
        rows = Rows(
            name,
            new_argument(name, self._arguments),
            module.num_parts,
            isinstance(module, PublishedGrowingTable),
            module.row_shape,
            trained.name,
        )
        rows.check_readable("model")
        setattr(self._root, rows.argument, module)
        self.rows.append((rows, module))

    def _add_variables(self, contents: Contents, groups: Mapping[int, Group]) -> None:
        """Makes stand-ins of all other variables."""
        self._argument_of: dict[str, str] = {}
        for group in groups.values():
            (variable, *_), (piece,) = group.variables, group.pieces
            dtype, name = variable.dtype.base_dtype, piece.names[0]
            module = PublishedDenseTable(variable.shape[1:], dtype, 1)
            self._add_rows(name, module, dtype)
            self._places[id(variable.handle)] = module.vectors.handle
        for share in contents.shares:
            for name, variable in share.wholes.items():
                with tf.init_scope(), tf.device("/device:CPU:0"):
                    own = tf.Variable(
                        tf.zeros(variable.shape, variable.dtype), trainable=False
                    )
                argument = self._argument_of[name] = new_argument(name, self._arguments)
                setattr(self._root, argument, own)
                self.dense[name] = own
                self._places[id(variable.handle)] = own.handle

    def _with_own_variables(self, model: Any, traced: Any, structure: Any) -> Any:
        """Returns the traced function with the stand-ins in place of variables."""
        captured = traced.captured_inputs
        num_given = len(traced.inputs) - len(captured)
        graph = _without_devices(traced.graph.as_graph_def())
        lookup_tables = _lookup_tables(model)
        # The stand-ins of tables were looked up in, and so they are captured already.
        known = dict(self._places)
        for _, table in self.rows:
            known.update((id(x), x) for x in table.resources)
        known.update((id(x.resource_handle), x.resource_handle) for x in lookup_tables)
        replacements = [_replacement(x, known) for x in captured]
        # What the graph keeps has to live as long as the SavedModel.
        self._root.lookup_tables = [
            x for x in lookup_tables if any(x.resource_handle is y for y in captured)
        ]
        names = [x.name for x in traced.inputs]
        outputs = [structure[key].name for key in structure]

        def serve(**inputs):
            given = [inputs[_argument_of(x)] for x in traced.inputs[:num_given]]
            values = [*given, *map(_captured, replacements)]
            found = tf.graph_util.import_graph_def(
                graph,
                input_map=dict(zip(names, values, strict=True)),
                return_elements=outputs,
                name="",
            )
            return dict(zip(structure, found, strict=True))

        specs = traced.structured_input_signature[1]
        return tf.function(serve, autograph=False).get_concrete_function(**specs)

    def _apply(self) -> Any:
        specs = {name: tf.TensorSpec([], tf.int64) for name in (BASE, VERSION)}
        for rows, module in self.rows:
            for what, spec in module.specs(tf.as_dtype(rows.dtype)).items():
                specs[rows.argument_of(what)] = spec
        for name, variable in self.dense.items():
            specs[self._argument_of[name]] = tf.TensorSpec(
                variable.shape, variable.dtype
            )

        def apply_delta(**given):
            with tf.control_dependencies(
                [refuse_other_base(self.version, given[BASE])]
            ):
                num_rows = [tf.constant(0, tf.int64)]
                for rows, module in self.rows:
                    own = {x: given[rows.argument_of(x)] for x in module.specs(tf.int8)}
                    num_rows.append(module.apply(own))
                assigned = [
                    variable.assign(given[self._argument_of[name]], read_value=False)
                    for name, variable in self.dense.items()
                ]
            # A model that is changed in part is of no version that there is.
            with tf.control_dependencies([*num_rows, *assigned]):
                self.version.assign(given[VERSION])
            return {VERSION: tf.identity(given[VERSION]), "rows": tf.add_n(num_rows)}

        return tf.function(apply_delta, autograph=False).get_concrete_function(**specs)


def _captured(value: tf.Tensor) -> tf.Tensor:
    """Returns what stands for a tensor from outside in the function that is traced.

    The result of the identity would not tell a resource's shape when it is loaded.
    """
    return tf.identity(value).op.inputs[0]


def _replacement(captured: Any, known: Mapping[int, tf.Tensor]) -> Any:
    """Returns what takes the place of a captured tensor."""
    if id(captured) in known:
        return known[id(captured)]
    if captured.dtype not in (tf.resource, tf.variant):
        return captured
    raise ValueError(
        "A model that is published must use no variables or resources but those of its "
        f"layers. Received: a model whose call uses {captured!r}"
    )


@contextlib.contextmanager
def _served(served: Any) -> Iterator[None]:
    """Lets tables be looked up in their stand-ins."""
    for tables, of_layer in served:
        tables.served = of_layer
    try:
        yield
    finally:
        for tables, _ in served:
            tables.served = None


def _traced(model: Any, input_signature: Any) -> tuple[Any, dict[str, tf.Tensor]]:
    """Traces a model with inputs by name; returns its outputs by name, too."""
    structure = _inputs_of(model) if input_signature is None else input_signature
    flat = tf.nest.flatten(structure)
    specs = dict(zip(_names_of(structure, flat), flat, strict=True))

    def call(**inputs):
        given = tf.nest.pack_sequence_as(structure, [inputs[name] for name in specs])
        return _by_name(model(given, training=False))

    specs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name)
        for name, spec in specs.items()
    }
    traced = tf.function(call, autograph=False).get_concrete_function(**specs)
    return traced, traced.structured_outputs


def _inputs_of(model: Any) -> Any:
    """Returns what a model of known inputs takes."""
    # A Sequential of Keras 3 has them as a list only.
    inputs = getattr(model, "inputs", None)
    with contextlib.suppress(AttributeError, ValueError, RuntimeError):
        inputs = model.input
    if inputs is None or (isinstance(inputs, list) and not inputs):
        raise ValueError(
            "A model without Input layers is published with an `input_signature`, in "
            "the structure of its inputs: tf.TensorSpec([None, 3], tf.int64), or a "
            f"dict of them by name. Received: {model.name!r}, input_signature=None"
        )
    return tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape, x.dtype, x.name), inputs
    )


def _names_of(structure: Any, flat: list[Any]) -> list[str]:
    """Returns names of inputs, by which requests give them."""
    if isinstance(structure, Mapping):
        names = [str(name) for name in sorted(structure)]
    else:
        names = [x.name or f"inputs_{number}" for number, x in enumerate(flat)]
    names = [_plain(name) for name in names]
    if len(set(names)) != len(flat):
        raise ValueError(
            "Inputs of a model that is published must be one tensor, a list, or a dict "
            f"of tensors, of different names. Received: {structure}"
        )
    return names


def _plain(name: str) -> str:
    name = re.sub(r"\W", "_", name.split(":")[0])
    return name if re.match(r"[A-Za-z]", name) else f"inputs_{name}"


def _argument_of(placeholder: Any) -> str:
    """Returns the name of the argument for which a function has a placeholder."""
    return placeholder.op.get_attr("_user_specified_name").decode()


def _by_name(outputs: Any) -> dict[str, Any]:
    """Returns outputs by names, as `model.export` gives them."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    return {f"output_{i}": x for i, x in enumerate(tf.nest.flatten(outputs))}


def _lookup_tables(model: Any) -> list[Any]:
    """Returns TensorFlow's lookup tables, such as those of StringLookup layers."""
    return [
        value
        for layer in trainer.layers_of(model)
        for value in vars(layer).values()
        if isinstance(value, _LOOKUP_TABLE)
    ]


def _without_devices(graph: Any) -> Any:
    """Lets a graph run where it is loaded, not where it was traced."""
    for nodes in (graph.node, *(x.node_def for x in graph.library.function)):
        for node in nodes:
            node.device = ""
    return graph
