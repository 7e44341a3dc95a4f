"""A layer of many embedding tables, spread over all parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python
from tf_syncrep.python.embedding import layout, lookup
from tf_syncrep.python.embedding.id_weights import flat_weights
from tf_syncrep.python.embedding.ragged import as_ragged, is_ragged
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.cluster import num_parts
from tf_syncrep.python.keras.embedding import dynamic_files
from tf_syncrep.python.keras.embedding.config import (
    FeatureConfig,
    TableConfig,
    own_table,
)
from tf_syncrep.python.keras.embedding.growing_layer import GrowingLayer
from tf_syncrep.python.keras.embedding.ids import (
    as_integers,
    as_keys,
    refuse_strings,
    warn_of_narrow_inputs,
)
from tf_syncrep.python.keras.embedding.tracking import track, track_dynamic
from tf_syncrep.python.keras.embedding.weights import reduced
from tf_syncrep.python.keras.optimizers.own_optimizers import (
    OwnOptimizer,
    refuse_other_optimizers,
)
from tf_syncrep.python.keras.tables import misfits, saved_layout
from tf_syncrep.python.keras.tables.fixed_tables import Tables
from tf_syncrep.python.keras.tables.growing.dynamic import Dynamic, row_initializer
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.setting import being_set

__all__ = ["DistributedEmbedding"]

# The key of the tables' layout in a file; no table has a key like this.
_LAYOUT = "%layout"


class _Features:
    """The features of a layer, in an object whose structure Keras does not change."""

    def __init__(self, configs: Any):
        self.configs = configs
        self.flat: list[FeatureConfig] = []
        self.tables: list[TableConfig] = []
        own: dict[int, TableConfig] = {}
        for config in tf.nest.flatten(configs):
            try:
                name, given, shapes = (
                    config.name,
                    config.table,
                    (config.input_shape, config.output_shape),
                )
            except AttributeError:
                raise ValueError(
                    "feature_configs must be FeatureConfigs, or a nested structure of "
                    f"them. Received: {config!r}"
                ) from None
            if id(given) not in own:
                own[id(given)] = _shared(own_table(given), self.tables)
            self.flat.append(FeatureConfig(name, own[id(given)], *shapes))
        # They are made here, since configurations cannot be read in a tf.function.
        self.own_optimizers = {
            table.name: OwnOptimizer(table.optimizer)
            for table in self.tables
            if table.optimizer is not None
        }
        if not self.flat:
            raise ValueError(
                f"feature_configs must have a feature. Received: {configs!r}"
            )

    def flatten(self, inputs: Any, what: str) -> list[Any]:
        """Returns the inputs in the order of the features."""
        flat: list[Any] = []
        if not _add_leaves(self.configs, inputs, flat):
            raise ValueError(
                f"{what} must have the structure of feature_configs, "
                f"{tf.nest.map_structure(lambda x: x.name, self.configs)}. "
                f"Received: {what}={inputs!r}"
            )
        return flat


def _shared(table, tables):
    """Returns the one of some tables that equals a table, or adds this one to them.

    `FeatureConfig.from_config` makes a table for each feature.
    """
    for other in tables:
        if other.name == table.name and other.get_config() == table.get_config():
            return other
    tables.append(table)
    return table


def _add_leaves(configs, inputs, flat):
    """Appends the input of each feature, and returns whether the structures are equal.

    A ragged or sparse tensor is one input, and so is None.
    """
    if isinstance(configs, Mapping):
        # This is the order of tf.nest.
        return (
            isinstance(inputs, Mapping)
            and set(inputs) == set(configs)
            and all(_add_leaves(configs[k], inputs[k], flat) for k in sorted(configs))
        )
    if isinstance(configs, list | tuple):
        return (
            isinstance(inputs, list | tuple)
            and len(inputs) == len(configs)
            and all(map(_add_leaves, configs, inputs, len(inputs) * [flat]))
        )
    flat.append(inputs)
    return not isinstance(inputs, Mapping)


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class DistributedEmbedding(GrowingLayer, tf.keras.layers.Layer):
    """Embedding tables of any size, for many features, on all parameter servers.

    Tables of one width are stacked, and the rows of the stack take turns on the
    parameter servers, so that all servers hold equally many. A step finds the distinct
    rows that the ids of all features name, asks each parameter server for its rows in
    one message, and sends it their gradients, summed by row, in one message. The rows
    of a table train as they would in a table of their own.

    Under any other strategy, or none, it is the same layer with one variable for each
    stack. Any Keras optimizer trains it; `tfs.keras.AdamAsync` and
    `tfs.keras.SyncReplicas` touch only the rows that a batch names. If a table has an
    optimizer of its own, `tfs.keras.TableOptimizers` trains the model.

    Args:
        feature_configs: a `tfs.keras.FeatureConfig`, or a nested structure of them;
            those of keras_rs are accepted, too. Features may share a table.
        table_stacking: `"auto"` to stack all tables of one width and one optimizer, and
            those that do not train by themselves; None to stack none; or the names of
            the tables to stack, in a list or a list of lists.
        transfer_dtype: the dtype in which rows and their gradients travel, `"bfloat16"`
            or `"float16"`; None for the dtype of the variables. Sums and slots keep
            their dtype.
        **kwargs: arguments of the base class: `name`, `dtype`, `trainable`.

    Inputs have the structure of `feature_configs`, and each is a tensor of shape
    `[batch]` or `[batch, n]`, a `tf.RaggedTensor` of shape `[batch, None]` or a
    `tf.SparseTensor` of rank 2, of int32 or int64 (others are cast). With a combiner,
    the ids along the last axis belong to one example, an example without ids has a
    vector of zeros, and `[batch]` means `[batch, 1]`. Without a combiner, each id has a
    vector.

    Outputs have the same structure, in the layer's compute dtype. With a combiner they
    are tensors of shape `[batch, embedding_dim]`; without one, their shape is that of
    the ids, followed by `embedding_dim`.

    An id that is not in its table raises `tf.errors.InvalidArgumentError`, which names
    feature, table, vocabulary and id; nothing is changed.

    Raises:
        ValueError: arguments do not fit together.

    Example:
    ```python
    import tensorflow as tf
    import tf_syncrep as tfs

    movies = tfs.keras.TableConfig("movies", 10_000, embedding_dim=16)
    users = tfs.keras.TableConfig("users", 200_000, embedding_dim=16)
    layer = tfs.keras.DistributedEmbedding(
        {
            "watched": tfs.keras.FeatureConfig("watched", movies),
            "candidate": tfs.keras.FeatureConfig("candidate", movies),
            "user": tfs.keras.FeatureConfig("user", users),
        }
    )
    vectors = layer(
        {
            "watched": tf.ragged.constant([[3, 7, 7], []]),
            "candidate": tf.constant([5, 9]),
            "user": tf.constant([123, 456]),
        }
    )
    ```

    Sources: the names and the shape of `keras_rs.layers.DistributedEmbedding`; the
    "mod" strategy of `tf.nn.embedding_lookup`.
    """

    def __init__(
        self,
        feature_configs: Any,
        *,
        table_stacking: Any = "auto",
        transfer_dtype: Any = None,
        **kwargs: Any,
    ):
        # Autocasting would round ids that come as floats.
        options = {name: as_python(value) for name, value in kwargs.items()}
        super().__init__(autocast=False, **options)
        # The ops have no kernels for XLA.
        self.supports_jit = False
        self._features = _Features(feature_configs)
        self._table_stacking = (
            table_stacking
            if table_stacking is None or isinstance(table_stacking, str)
            else tuple(table_stacking)
        )
        self._transfer_dtype = _transfer_dtype(transfer_dtype, self.variable_dtype)
        # This refuses tables that cannot be stacked, before anything is made.
        self._tables, self._growing = self._lay_out(1)

    def _lay_out(self, num_parts):
        """Returns the tables of fixed size, and those that grow."""
        dtype = tf.as_dtype(self.variable_dtype).name
        dynamic, tables = {}, []
        for table in self._features.tables:
            size = table.vocabulary_size
            if isinstance(size, Dynamic):
                dynamic[table.name] = size
            own = self._features.own_optimizers.get(table.name)
            tables.append(
                layout.Table(
                    table.name,
                    size.max_rows if isinstance(size, Dynamic) else size,
                    table.embedding_dim,
                    dtype,
                    isinstance(size, Dynamic),
                    own,
                    table.trainable,
                )
            )
        slabs = layout.stack(tables, num_parts, self._table_stacking)
        return (
            Tables([x for x in slabs if isinstance(x, layout.Slab)]),
            DynamicTables(
                [x for x in slabs if isinstance(x, layout.DynamicSlab)], dynamic, self
            ),
        )

    def build(self, input_shapes: Any = None) -> None:
        """Makes the variables, whose shapes depend on no input."""
        if self.built:
            return
        self._tables, self._growing = self._lay_out(num_parts())
        by_name = {table.name: table for table in self._features.tables}
        if self._features.own_optimizers:
            refuse_other_optimizers()
        self._tables.make(
            self.add_weight,
            {name: by_name[name].initializer for name in self._tables.by_name},
        )
        self._growing.make(
            self.add_weight,
            {
                name: row_initializer(
                    by_name[name].initializer, name, table.vocabulary_size, table.width
                )
                for name, table in self._growing.by_name.items()
            },
        )
        if self._tables.slabs:
            track(self, self._tables)
        if self._growing.slabs:
            track_dynamic(self, self._growing)
        self.built = True

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks the inputs before Keras does, whose errors would be misleading."""
        ids = self._features.flatten(inputs, "inputs")
        for config, of_feature in zip(self._features.flat, ids, strict=True):
            feature = f"feature {config.name!r}"
            if config.table.name in self._growing.by_name:
                warn_of_narrow_inputs(of_feature, feature)
            elif hasattr(of_feature, "dtype"):
                refuse_strings(of_feature, feature)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Any, weights: Any = None, training: Any = None) -> Any:
        """Looks up the ids of all features.

        Args:
            inputs: ids, in the structure of `feature_configs`.
            weights: None, or weights of the ids, in the same structure and of the same
                kinds and shapes. A feature without weights has None. No gradient flows
                to them. If those of ragged or sparse ids are not as many in each row
                as the ids, `tf.errors.InvalidArgumentError` is raised.
            training: whether this is a training step.

        Returns:
            Vectors, in the same structure.
        """
        ids = self._features.flatten(inputs, "inputs")
        all_weights = [None] * len(ids)
        if weights is not None:
            all_weights = self._features.flatten(weights, "weights")
        by_name = {**self._tables.by_name, **self._growing.by_name}
        served = self._growing.served is not None
        asked = [
            _asked(config, by_name[config.table.name], served, *of_feature)
            for config, *of_feature in zip(
                self._features.flat, ids, all_weights, strict=True
            )
        ]
        vectors: list[Any] = [None] * len(asked)
        for tables in (self._tables, self._growing):
            for i, x in tables.look_up(asked, bool(training), self._transfer_dtype):
                vectors[i] = tf.cast(x, self.compute_dtype)
        for i, (feature, x) in enumerate(zip(asked, ids, strict=True)):
            if feature.combiner is None and is_ragged(x):
                vectors[i] = as_ragged(x).with_values(vectors[i])
        return tf.nest.pack_sequence_as(self._features.configs, vectors)

    def get_embedding_tables(self) -> dict[str, Any]:
        """Returns the values of the tables.

        Returns:
            NumPy arrays of shape `[vocabulary_size, embedding_dim]`, by the name of the
            table. A table that grows has a named tuple of ascending `keys` of shape
            `[n]` and `vectors` of shape `[n, embedding_dim]`.
        """
        return {
            name: (self._owner_of(name)).read(name)
            for name in (table.name for table in self._features.tables)
        }

    def _owner_of(self, name: str) -> Tables | DynamicTables:
        return self._growing if name in self._growing.by_name else self._tables

    def set_embedding_tables(self, tables: dict[str, Any]) -> None:
        """Sets the values of tables.

        Args:
            tables: arrays of shape `[vocabulary_size, embedding_dim]`, such as those of
                a plain `keras.layers.Embedding`, by the name of the table. A table that
                grows takes keys and vectors as `get_embedding_tables` returns them, in
                any order, and all other keys lose their rows. Tables that are not named
                stay as they are.

        Raises:
            ValueError: there is no such table, or it has another shape; a key comes
                twice, or there are more keys than there is room for.
        """
        known = {table.name for table in self._features.tables}
        for name, values in tables.items():
            if name not in known:
                raise ValueError(
                    f"`tables` must name tables of layer {self.name!r}: "
                    f"{sorted(known)}. Received: {name!r}"
                )
            self._owner_of(name).checked(name, values)
        with being_set:
            for name, values in tables.items():
                self._owner_of(name).write(name, values)

    def save_own_variables(self, store: Any) -> None:
        """Saves the tables by name, whatever their parts; called by Keras."""
        dynamic_files.save(self._growing, store)
        for name in self._tables.by_name:
            store[self._tables.key_in_files(name)] = self._tables.read(name)
        layout_now = saved_layout.as_json(self._tables)
        store[_LAYOUT] = np.frombuffer(layout_now.encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Loads tables that were saved by name; called by Keras."""
        saved, key_of = set(store.keys()), self._tables.key_in_files

        def check(name):
            if key_of(name) not in saved:
                raise ValueError(
                    f"Layer {self.name!r} must be loaded from a file with its tables. "
                    f"Missing: {name!r}"
                )
            self._tables.check_shape(name, store[key_of(name)])

        fitting = [
            name
            for name in self._tables.by_name
            if misfits.fits(check, self._tables, name)
        ]
        if _LAYOUT in saved:
            self._check_layout(store)
        with being_set:
            # This comes first, since it may refuse the file before anything is written.
            dynamic_files.load(self._growing, store, self.name)
            for name in fitting:
                self._tables.write(name, store[key_of(name)][...])

    def _check_layout(self, store: Any) -> None:
        """Raises if Keras would silently load slots of the file into wrong places."""
        saved = bytes(np.asarray(store[_LAYOUT][...])).decode()
        own, slabs = self._tables.slabs, saved_layout.from_json(saved)
        if (
            saved != saved_layout.as_json(self._tables)
            and saved_layout.have_equal_shapes(slabs, own)
            and compat.holds_numbered_slots(store)
        ):
            raise ValueError(
                f"Tables of layer {self.name!r} lie in other parts than in the file, "
                f"but of equal shapes: {saved_layout.described(own)}; there "
                f"{saved_layout.described(slabs)}. Keras would load the slots of the "
                "file's optimizer into those of other rows. tfs.keras.Checkpoint saves "
                "and restores slots of any optimizer in any layout; or save the file "
                "from a model without an optimizer."
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal layer of it."""
        tables = self._features.tables
        numbers = {id(table): number for number, table in enumerate(tables)}
        features = iter(self._features.flat)

        def config_of(_):
            feature = next(features)
            return {**feature.get_config(), "table": numbers[id(feature.table)]}

        transfer_dtype = self._transfer_dtype
        return {
            **super().get_config(),
            "feature_configs": tf.nest.map_structure(config_of, self._features.configs),
            "tables": [table.get_config() for table in tables],
            "table_stacking": _as_lists(self._table_stacking),
            "transfer_dtype": transfer_dtype and transfer_dtype.name,
        }

    def __reduce__(self) -> Any:
        return reduced(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        """Makes a layer from what `get_config` returned."""
        config = dict(config)
        tables = [TableConfig.from_config(x) for x in config.pop("tables")]

        def features_of(structure):
            if isinstance(structure, dict):
                number = structure.get("table")
                if isinstance(number, int):
                    return FeatureConfig.from_config(
                        {**structure, "table": tables[number]}
                    )
                return {name: features_of(x) for name, x in structure.items()}
            found = map(features_of, structure)
            is_named = hasattr(structure, "_fields")  # a named tuple
            return type(structure)(*found) if is_named else type(structure)(found)

        config["feature_configs"] = features_of(config["feature_configs"])
        return cls(**config)


def _transfer_dtype(dtype, variable_dtype):
    if dtype is None:
        return None
    try:
        found = tf.as_dtype(dtype)
    except TypeError:
        found = None
    if found not in (tf.bfloat16, tf.half) or variable_dtype != "float32":
        raise ValueError(
            "transfer_dtype must be 'bfloat16', 'float16' or None, and the layer's "
            "variables float32 with the first two. Received: "
            f"transfer_dtype={dtype!r}, variables of {variable_dtype}"
        )
    return found


def _as_lists(stacking):
    if isinstance(stacking, tuple):
        return [x if isinstance(x, str) else list(x) for x in stacking]
    return stacking


def _check_rank(x, what):
    # Otherwise all ids of an example would be combined, whatever axis they are in.
    if isinstance(x, tf.SparseTensor) and x.shape.rank not in (2, None):
        raise ValueError(
            f"Sparse {what} must have shape [batch, n]. Received: a SparseTensor of "
            f"shape {x.shape.as_list()}"
        )


def _asked(config, table, served, ids, weights):
    """Returns the lookup of a feature in its table."""
    combiner = config.table.combiner
    feature = f"feature {config.name!r}"
    splits = None
    if is_ragged(ids):
        _check_rank(ids, f"ids of {feature}")
        ids = as_ragged(ids)
        if ids.ragged_rank != 1 or ids.values.shape.rank != 1:
            raise ValueError(
                f"Ragged ids of feature {config.name!r} must have shape [batch, None]. "
                f"Received: ids of shape {ids.shape}"
            )
        splits, ids = tf.cast(ids.row_splits, tf.int64), ids.values
    else:
        ids = tf.convert_to_tensor(ids)
        if combiner is not None and ids.shape.rank == 1:
            ids = tf.expand_dims(ids, -1)
    if table.grows:
        ids = as_keys(ids, feature, served)
    else:
        ids = as_integers(ids, feature, table.vocabulary_size)
    if weights is not None:
        if combiner is None:
            raise ValueError(
                f"Feature {config.name!r} has no combiner, and so no weights. "
                f"Received: weights={weights!r}"
            )
        if splits is None and not is_ragged(weights):
            weights = tf.convert_to_tensor(weights)
            if weights.shape.rank == 1:  # as ids of shape [batch]
                weights = tf.expand_dims(weights, -1)
        _check_rank(weights, f"weights of {feature}")
        weights = flat_weights(weights, ids, splits, feature)
    if combiner is None:
        splits = None
    return lookup.Feature(config.name, table, ids, combiner, splits, weights)
