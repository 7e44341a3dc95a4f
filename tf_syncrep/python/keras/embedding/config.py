"""What a `DistributedEmbedding` is told of its tables and features."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.optimizers.own_optimizers import checked
from tf_syncrep.python.keras.optimizers.saved_optimizers import optimizer_from
from tf_syncrep.python.keras.tables.dynamic import Dynamic, row_initializer
from tf_syncrep.python.keras.tables.row_slots import refuse_averages
from tf_syncrep.python.sync.arguments import as_python

COMBINERS = ("sum", "mean", "sqrtn", None)
_PLACEMENTS = ("auto", "default_device")


def _default_initializer() -> Any:
    return tf.keras.initializers.VarianceScaling(mode="fan_out")


@dataclasses.dataclass
class TableConfig:
    """A table of embeddings, which several features may share.

    It has the names and defaults of `keras_rs.layers.TableConfig`; but for the
    optimizer, which is the model's unless the table has its own.

    Example:
    >>> table = tfs.keras.TableConfig("users", 1_000_000, 64, combiner="sum")
    >>> tfs.keras.TableConfig.from_config(table.get_config()).vocabulary_size
    1000000

    Attributes:
        name: its name, which no other table of the layer has. Saved files have it.
        vocabulary_size: how many rows it has; ids are below. Or a `tfs.keras.Dynamic`,
            for a table that grows, of any ids.
        embedding_dim: how many elements a row has.
        initializer: a Keras initializer, or its name; by default normal numbers of
            standard deviation `1 / sqrt(embedding_dim)`, none beyond twice that. Those
            of a row of a table that grows depend on its seed (0 if it has none), the
            table's name and the key alone.
        optimizer: what trains the table: a Keras optimizer, of whose class and
            configuration `tfs.keras.TableOptimizers` makes the one that does, or a
            name, which means the optimizer of `tfs.keras` where there is one for the
            purpose (`"adagrad"`, `"adam"` for AdamAsync, `"ftrl"`, `"rowwise_adagrad"`,
            `"sgd"`), else that of Keras. None or `"auto"` for the model's.
        combiner: what becomes of several ids of an example: `"mean"`, `"sum"`,
            `"sqrtn"`, all weighted if there are weights; None for one vector an id.
        placement: `"auto"` or `"default_device"`: where the strategy puts variables.

    Raises:
        ValueError: an argument that is not one of these.
    """

    name: str
    vocabulary_size: int | Dynamic
    embedding_dim: int
    initializer: Any = dataclasses.field(default_factory=_default_initializer)
    optimizer: Any = None
    combiner: str | None = "mean"
    placement: str = "auto"

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
            # NumPy's integers are taken, too, and cannot be written into a file.
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
        self.initializer = tf.keras.initializers.get(self.initializer)
        if isinstance(self.vocabulary_size, Dynamic):
            if self.optimizer is not None and not isinstance(self.optimizer, str):
                refuse_averages([self.optimizer])
            row_initializer(
                self.initializer,
                self.name,
                self.vocabulary_size.max_rows,
                self.embedding_dim,
            )

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` makes an equal table of."""
        return {
            "name": self.name,
            "vocabulary_size": size_as_json(self.vocabulary_size),
            "embedding_dim": self.embedding_dim,
            "initializer": tf.keras.initializers.serialize(self.initializer),
            "optimizer": _as_json(self.optimizer),
            "combiner": self.combiner,
            "placement": self.placement,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """Makes a table of what `get_config` returned."""
        initializer = tf.keras.initializers.deserialize(config["initializer"])
        size = size_from_json(config["vocabulary_size"])
        optimizer = config.get("optimizer")  # Older files have none.
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
    """What `size_from_json` makes an equal size of a table of."""
    return size.get_config() if isinstance(size, Dynamic) else size


def size_from_json(size: Any) -> Any:
    """The size of a table that was saved."""
    return Dynamic.from_config(size) if isinstance(size, Mapping) else size


@dataclasses.dataclass
class FeatureConfig:
    """A feature, and the table that its ids count the rows of.

    It has the names of `keras_rs.layers.FeatureConfig`.

    Attributes:
        name: its name, for errors.
        table: the table.
        input_shape: shape of its ids, the batch first. As in keras_rs, batches of other
            shapes are taken.
        output_shape: shape of its vectors, which follows from the ids.

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
        """Returns what `from_config` makes an equal feature of."""
        return {
            "name": self.name,
            "table": self.table.get_config(),
            "input_shape": _as_list(self.input_shape),
            "output_shape": _as_list(self.output_shape),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureConfig:
        """Makes a feature of what `get_config` returned."""
        return cls(
            config["name"],
            TableConfig.from_config(config["table"]),
            _as_tuple(config["input_shape"]),
            _as_tuple(config["output_shape"]),
        )


def own_table(table: Any) -> TableConfig:
    """A table as this package has it.

    Args:
        table: a `TableConfig` of this package or of keras_rs. Of the latter's
            optimizers the default, which cannot be told from none, is taken for the
            model's.

    Returns:
        A `TableConfig` of this package.
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
