"""The settings of the tables and features of a `DistributedEmbedding`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python
from tf_syncrep.python.keras.optimizers.own_optimizers import checked
from tf_syncrep.python.keras.optimizers.saved_optimizers import optimizer_from
from tf_syncrep.python.keras.tables.growing.dynamic import Dynamic, row_initializer
from tf_syncrep.python.keras.tables.row_slots import refuse_unfit

COMBINERS = ("sum", "mean", "sqrtn", None)
_PLACEMENTS = ("auto", "default_device")


@dataclasses.dataclass
class TableConfig:
    """A table of embeddings, which several features may share.

    It has the names and defaults of `keras_rs.layers.TableConfig`, except that the
    model's optimizer trains the table unless it has its own.

    Example:
    >>> table = tfs.keras.TableConfig("users", 1_000_000, 64, combiner="sum")
    >>> tfs.keras.TableConfig.from_config(table.get_config()).vocabulary_size
    1000000

    Attributes:
        name: its name, which no other table of the layer may have. Saved files have it.
        vocabulary_size: how many rows it has; ids must be below this number. Or a
            `tfs.keras.Dynamic`, for a table that grows and takes any ids.
        embedding_dim: how many elements a row has.
        initializer: a Keras initializer, or its name. By default the numbers are normal
            with standard deviation `1 / sqrt(embedding_dim)`, and none is beyond twice
            that. In a table that grows, the values of a row depend only on the
            initializer's seed (0 if it has none), the table's name and the key.
        optimizer: the optimizer that trains the table. `tfs.keras.TableOptimizers`
            makes it from the class and configuration of the Keras optimizer given here,
            or from a name. A name means the optimizer of `tfs.keras` if there is one
            for the purpose (`"adagrad"`, `"adam"` for AdamAsync, `"ftrl"`,
            `"rowwise_adagrad"`, `"sgd"`), and otherwise that of Keras. None or
            `"auto"` stands for the model's optimizer.
        combiner: how the vectors of an example's ids are combined: `"mean"`, `"sum"` or
            `"sqrtn"`, all of them weighted if there are weights; None gives one vector
            for each id.
        placement: `"auto"` or `"default_device"`; the strategy places the variables.
        trainable: whether the table trains. If not, its vectors stay as they are, it
            has no slots, and if it could grow, no id gets or loses a row.

    Raises:
        ValueError: an argument has another value than these.
    """

    name: str
    vocabulary_size: int | Dynamic
    embedding_dim: int
    initializer: Any = dataclasses.field(
        default_factory=lambda: tf.keras.initializers.VarianceScaling(mode="fan_out")
    )
    optimizer: Any = None
    combiner: str | None = "mean"
    placement: str = "auto"
    trainable: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"A table must have a name. Received: name={self.name!r}")
        table = f"Table {self.name!r}"
        for name in ("vocabulary_size", "embedding_dim"):
            value = getattr(self, name)
            if name == "vocabulary_size" and type(value) is Dynamic:
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
                raise ValueError(
                    f"{table}: {name} must be a whole number of at least 1. "
                    f"Received: {name}={value!r}"
                )
            # NumPy's integers are accepted, but JSON cannot hold them.
            setattr(self, name, int(value))
        self.optimizer = checked(self.optimizer, table)
        if self.combiner not in COMBINERS:
            raise ValueError(
                f"{table}: combiner must be 'sum', 'mean', 'sqrtn' or None. "
                f"Received: combiner={self.combiner!r}"
            )
        if self.placement not in _PLACEMENTS:
            raise ValueError(
                f"{table}: placement must be 'auto' or 'default_device': there are no "
                f"other places here. Received: placement={self.placement!r}"
            )
        self.trainable = as_python(self.trainable)
        if not isinstance(self.trainable, bool):
            raise ValueError(
                f"{table}: trainable must be True or False. Received: "
                f"trainable={self.trainable!r}"
            )
        self.initializer = tf.keras.initializers.get(self.initializer)
        if isinstance(self.vocabulary_size, Dynamic):
            if self.optimizer is not None and not isinstance(self.optimizer, str):
                refuse_unfit(self.optimizer)
            row_initializer(
                self.initializer,
                self.name,
                self.vocabulary_size.max_rows,
                self.embedding_dim,
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal table of it."""
        return {
            "name": self.name,
            "vocabulary_size": size_as_json(self.vocabulary_size),
            "embedding_dim": self.embedding_dim,
            "initializer": tf.keras.initializers.serialize(self.initializer),
            "optimizer": _as_json(self.optimizer),
            "combiner": self.combiner,
            "placement": self.placement,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """Makes a table from what `get_config` returned."""
        initializer = tf.keras.initializers.deserialize(config["initializer"])
        size = size_from_json(config["vocabulary_size"])
        optimizer = config["optimizer"]
        if isinstance(optimizer, Mapping):
            optimizer = optimizer_from(dict(optimizer))
        return cls(
            **{
                **config,
                "initializer": initializer,
                "vocabulary_size": size,
                "optimizer": optimizer,
            }
        )


def _as_json(optimizer: Any) -> Any:
    if optimizer is None or isinstance(optimizer, str):
        return optimizer
    return tf.keras.optimizers.serialize(optimizer)


def size_as_json(size: int | Dynamic) -> Any:
    """Returns a table's size in JSON; `size_from_json` makes an equal size of it."""
    return size.get_config() if isinstance(size, Dynamic) else size


def size_from_json(size: Any) -> Any:
    """Makes the size of a table from what `size_as_json` returned."""
    return Dynamic.from_config(size) if isinstance(size, Mapping) else size


@dataclasses.dataclass
class FeatureConfig:
    """A feature, and the table that its ids count the rows of.

    It has the names of `keras_rs.layers.FeatureConfig`. Features share a table if they
    have the same one, or tables that are equal.

    Attributes:
        name: its name, for errors.
        table: the table.
        input_shape: the shape of its ids, which begins with the batch size. As in
            keras_rs, batches of other shapes are accepted.
        output_shape: the shape of its vectors, which follows from the ids.

    Example:
    >>> movies = tfs.keras.TableConfig("movies", 1_000_000, embedding_dim=64)
    >>> watched = tfs.keras.FeatureConfig("watched", movies)
    >>> candidate = tfs.keras.FeatureConfig("candidate", movies)  # of the same table
    """

    name: str
    table: TableConfig
    input_shape: tuple[int | None, ...] | None = None
    output_shape: tuple[int | None, ...] | None = None

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal feature of it."""
        return {
            "name": self.name,
            "table": self.table.get_config(),
            "input_shape": _as_list(self.input_shape),
            "output_shape": _as_list(self.output_shape),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureConfig:
        """Makes a feature from what `get_config` returned."""
        table = config["table"]
        return cls(
            config["name"],
            TableConfig.from_config(table) if isinstance(table, dict) else table,
            _as_tuple(config["input_shape"]),
            _as_tuple(config["output_shape"]),
        )


def own_table(table: Any) -> TableConfig:
    """Converts the table of a feature into a `TableConfig` of this package.

    `table`: a `TableConfig` of this package or of keras_rs. In the latter "adam" may be
    the default or the user's choice; here it means the model's optimizer.
    """
    if isinstance(table, TableConfig):
        return table
    try:
        optimizer = table.optimizer
        return TableConfig(
            table.name,
            table.vocabulary_size,
            table.embedding_dim,
            table.initializer,
            None if isinstance(optimizer, str) and optimizer == "adam" else optimizer,
            table.combiner,
            table.placement,
        )
    except AttributeError:
        raise ValueError(
            f"A feature's table must be a TableConfig. Received: table={table!r}"
        ) from None


def _as_list(shape):
    return None if shape is None else [as_python(size) for size in shape]


def _as_tuple(shape):
    return None if shape is None else tuple(shape)
