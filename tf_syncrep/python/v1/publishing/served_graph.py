"""A v1 model as it is published: the graph that serves, which can be updated."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.embedding.served_tables import refuse_other_base
from tf_syncrep.python.serving.publications import (
    APPLY,
    BASE,
    PLACES,
    VECTORS,
    VERSION,
    Rows,
    new_argument,
)
from tf_syncrep.python.v1.checkpoint.contents import contents_of
from tf_syncrep.python.v1.variable_rows import part_of

_VERSION = "tf_syncrep_version"
_saved_model = tf.compat.v1.saved_model
_placeholder = tf.compat.v1.placeholder


class ServedGraph:
    """A graph of its own, with the variables of the graph that is trained.

    A SavedModel of it has the files of a full publication as they are, since they have
    what a Saver of the graph restores.
    `contents`: of its variables, in the graph that is trained.
    """

    def __init__(self, serve: Callable[[], Any]):
        """Builds it beside the default graph, which is the one that is trained."""
        trained = _variables_by_name()
        self._tables: list[Rows] = []
        self._dense: dict[str, str] = {}
        with (
            tf.Graph().as_default() as graph,
            tf.compat.v1.variable_creator_scope(_as_resource),
        ):
            inputs, outputs = _inputs_and_outputs(serve())
            served = _variables_by_name()
            _check(graph, served, trained)
        self.contents, _ = contents_of([[v] for name in served for v in trained[name]])
        self._describe(self.contents, served)
        with graph.as_default():
            signatures = {
                _saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: (inputs, outputs),
                APPLY: self._apply(served),
            }
            self._saved_model = _saved_model_of(signatures)

    def describe(self) -> dict[str, Any]:
        """Returns what a manifest says of the arguments of `apply_delta`."""
        return {
            "tables": [dataclasses.astuple(rows) for rows in self._tables],
            "dense": self._dense,
        }

    def assemble(self, number: int, prefix: str, folder: str) -> None:
        """Writes the SavedModel, of which the files of the bundle become a part."""
        bundle, own = (
            os.path.join(folder, *x) for x in (["variables", "variables"], ["own"])
        )
        tf.io.gfile.makedirs(os.path.dirname(bundle))
        with tf.io.gfile.GFile(os.path.join(folder, "saved_model.pb"), "wb") as file:
            file.write(self._saved_model)
        with (
            tf.Graph().as_default(),
            tf.device("/device:CPU:0"),
            tf.compat.v1.Session() as session,
        ):
            save = tf.raw_ops.SaveV2(
                prefix=own,
                tensor_names=[_VERSION],
                shape_and_slices=[""],
                tensors=[tf.constant(number, tf.int64)],
            )
            with tf.control_dependencies([save]):
                merge = tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=[prefix, own],
                    destination_prefix=bundle,
                    delete_old_dirs=False,
                )
            session.run(merge)

    def _describe(
        self, contents: Contents, served: Mapping[str, Sequence[Any]]
    ) -> None:
        taken = {BASE, VERSION}
        names = [
            x.names[0] for s in contents.shares for g in s.groups for x in g.pieces
        ]
        for name in dict.fromkeys(names):  # The parts of a table have one name.
            dtype, (_, *row_shape) = _kind(served[name])
            argument = new_argument(name, taken)
            self._tables.append(Rows(name, argument, 1, False, row_shape, dtype))
            self._tables[-1].check_readable("serve")
        for share in contents.shares:
            for name in share.wholes:
                self._dense[name] = new_argument(name, taken)

    def _apply(self, served: Mapping[str, Sequence[Any]]) -> tuple[Any, Any]:
        """Returns the inputs and outputs of the signature that updates the graph."""
        version = tf.compat.v1.Variable(
            tf.constant(0, tf.int64), trainable=False, name=_VERSION, use_resource=True
        )
        given = {name: _placeholder(tf.int64, []) for name in (BASE, VERSION)}
        for rows in self._tables:
            dtype, shape = _kind(served[rows.name])
            given[rows.argument_of(PLACES)] = _placeholder(tf.int64, [None])
            given[rows.argument_of(VECTORS)] = _placeholder(dtype, [None, *shape[1:]])
        for name, argument in self._dense.items():
            given[argument] = _placeholder(*_kind(served[name]))
        num_rows = tf.constant(0, tf.int64)
        with tf.control_dependencies([refuse_other_base(version, given[BASE])]):
            done = []
            for rows in self._tables:
                places, vectors = (
                    given[rows.argument_of(x)] for x in (PLACES, VECTORS)
                )
                num_rows += tf.size(places, tf.int64)
                done += [_set_rows(x, places, vectors) for x in served[rows.name]]
            for name, argument in self._dense.items():
                done += [_set_all(x, given[argument]) for x in served[name]]
            # A graph that is changed in part is of no version that there is.
            with tf.control_dependencies(done):
                set_version = version.assign(given[VERSION], read_value=False)
        with tf.control_dependencies([set_version]):
            outputs = {
                VERSION: tf.identity(given[VERSION]),
                "rows": tf.identity(num_rows),
            }
        return given, outputs


def _as_resource(next_creator: Callable[..., Any], **options: Any) -> Any:
    """Makes a resource variable, of which requests and updates see whole rows."""
    return next_creator(**{**options, "use_resource": True})


def _variables_by_name() -> dict[str, list[Any]]:
    """Returns the parts of the default graph's variables, by their names in files."""
    found: dict[str, list[Any]] = {}
    for variable in tf.compat.v1.global_variables():
        part = part_of(variable)
        name = variable.op.name if part is None else part.full_name
        found.setdefault(name, []).append(variable)
    return found


def _kind(parts: Sequence[Any]) -> tuple[str, list[int]]:
    """Returns the dtype and the shape of a variable that may be in parts."""
    part = part_of(parts[0])
    shape = parts[0].shape.as_list() if part is None else part.full_shape
    return parts[0].dtype.base_dtype.name, [int(size) for size in shape]


def _inputs_and_outputs(found: Any) -> tuple[Any, Any]:
    """Returns what `serve` has returned, if that is right."""
    is_right = isinstance(found, tuple) and len(found) == 2
    if not is_right or not all(isinstance(x, Mapping) and x for x in found):
        raise ValueError(
            "`serve` must return the inputs and the outputs of the model: two dicts of "
            f"tensors by name. Received: {found!r}"
        )
    return found


def _check(
    graph: Any, served: Mapping[str, Any], trained: Mapping[str, Sequence[Any]]
) -> None:
    """Raises ValueError if a graph cannot serve what is trained."""
    for name, parts in served.items():
        wanted = _kind(trained[name]) if name in trained else None
        if (found := _kind(parts)) != wanted:
            has = f"has {wanted[0]} {wanted[1]}" if wanted else "does not have"
            raise ValueError(
                "`serve` must make variables of the names, dtypes and shapes of those "
                f"that are trained. Received: {name!r}, {found[0]} {found[1]}, which "
                f"the graph {has}"
            )
    own = {x.type for x in graph.get_operations() if x.type.startswith("Syncrep>")}
    if own:
        raise ValueError(
            "`serve` must use TensorFlow's own ops alone: tf.nn.embedding_lookup, with "
            "partition_strategy='div' for a table in parts, in the place of "
            f"tfs.train.embedding_lookup. Received: {sorted(own)}"
        )


def _set_rows(variable: Any, places: tf.Tensor, vectors: tf.Tensor) -> Any:
    """Sets those of some rows of a table that a variable has."""
    if (part := part_of(variable)) is not None:
        begin, size = list(part.var_offset), list(part.var_shape)
        places -= begin[0]
        is_own = (places >= 0) & (places < size[0])
        places, vectors = (tf.boolean_mask(x, is_own) for x in (places, vectors))
        vectors = tf.slice(vectors, [0, *begin[1:]], [-1, *size[1:]])
    return tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=places, updates=vectors
    )


def _set_all(variable: Any, value: tf.Tensor) -> Any:
    """Sets a variable to what it has of a value."""
    if (part := part_of(variable)) is not None:
        value = tf.slice(value, list(part.var_offset), list(part.var_shape))
    return variable.assign(value, read_value=False)


def _saved_model_of(signatures: Mapping[str, tuple[Any, Any]]) -> bytes:
    """Returns the SavedModel of the default graph, whose variables are in files.

    TensorFlow's own builder would write the variables of a session.
    """
    saver = tf.compat.v1.train.Saver(tf.compat.v1.global_variables())
    # So it is found by whoever loads a SavedModel.
    tf.compat.v1.add_to_collection(
        _saved_model.constants.MAIN_OP_KEY, tf.compat.v1.tables_initializer()
    )
    found = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    graph = found.meta_graphs.add()
    graph.CopyFrom(
        tf.compat.v1.train.export_meta_graph(
            saver_def=saver.as_saver_def(), clear_devices=True
        )
    )
    graph.meta_info_def.tags.append(_saved_model.tag_constants.SERVING)
    for name, (inputs, outputs) in signatures.items():
        signature = graph.signature_def[name]
        signature.method_name = _saved_model.PREDICT_METHOD_NAME
        for tensors, told in ((inputs, signature.inputs), (outputs, signature.outputs)):
            for key, tensor in tensors.items():
                told[key].name = tensor.name
                told[key].dtype = tensor.dtype.as_datatype_enum
                told[key].tensor_shape.CopyFrom(tensor.shape.as_proto())
    return found.SerializeToString()
