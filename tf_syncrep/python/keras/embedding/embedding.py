"""An embedding layer that looks up rows on the tasks that hold the table's parts."""

from __future__ import annotations

import operator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python
from tf_syncrep.python.embedding import layout, lookup
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.cluster import num_parts
from tf_syncrep.python.keras.embedding.dynamic_embedding import DynamicEmbedding
from tf_syncrep.python.keras.embedding.ids import as_integers
from tf_syncrep.python.keras.embedding.tracking import track
from tf_syncrep.python.keras.embedding.weights import made_again
from tf_syncrep.python.keras.tables.fixed_tables import Tables
from tf_syncrep.python.keras.tables.growing.dynamic import Dynamic

__all__ = ["Embedding"]

# The least size of a part that is worth messages of its own.
_MIN_PART_BYTES = 256 << 10
# The arguments that concern the table as a whole, or Keras 3's one variable.
_OF_FIXED_TABLES = (
    "shards",
    "embeddings_regularizer",
    "embeddings_constraint",
    "weights",
    "lora_rank",
    "lora_alpha",
    "quantization_config",
    "input_length",
)
# The penalties of these are sums over elements, and so those of parts add up.
_SUMS = [getattr(tf.keras.regularizers, name) for name in ("L1", "L2", "L1L2")]
# The name of the table, and of its variable if there is only one.
_NAME = "embeddings"


@compat.saved_as_stock
class Embedding(tf.keras.layers.Embedding):
    """`tf.keras.layers.Embedding` for tables that are on parameter servers.

    Keras 3's own layer reads the whole table in each step, from the task that holds it,
    and then takes the rows. Here that task looks up the rows, so that a batch costs
    what its rows cost; and a large table is spread over all parameter servers, as those
    of `tfs.keras.DistributedEmbedding` are. Arguments, configuration and masks are the
    base class's. With Keras 2 it is the base class, unless `shards` is given.

    A `.keras` file names it as Keras's own layer, and opens without tf_syncrep, unless
    `shards` is given. If tf_syncrep is imported, it opens as this layer; with Keras 2
    it opens as Keras's own. A table in parts is saved as one.

    Negative ids are refused; in Keras 3's own layer they count from the end. With a
    `tfs.keras.Dynamic` in the place of `input_dim` the table grows, and any id has a
    vector. The layer then takes `training`, has `table_stats`, `get_embedding_table`
    and `set_embedding_table`, and files name it as a layer of tf_syncrep. Its table has
    the layer's name, on which initial vectors depend. It takes `embeddings_initializer`
    and `mask_zero`, and refuses what concerns a whole table: `shards`, `weights`,
    `input_length`, a regularizer or constraint of the table, LoRA and quantisation.
    A class that derives from this one has tables of fixed size alone.

    Args:
        *args: arguments of the base class: `input_dim`, `output_dim`, and so on.
        shards: the number of parts of the table, whose rows take turns; 1 for one
            variable. By default, under ParameterServerStrategy with Keras 3, each
            parameter server has a part, as long as each part has at least 256 KiB. In
            all other cases, and if LoRA, quantisation, a constraint or a regularizer
            need the whole table, there is one variable. A regularizer does, unless it
            is L1, L2 or both, or has an attribute `sums_over_elements` that is true.
        **kwargs: arguments of the base class.

    Raises:
        ValueError: `shards` is not a whole number of at least 1, or is above 1 together
            with something that needs the whole table; or something does not fit a table
            that grows.

    Example:
    ```python
    model = tf.keras.Sequential(
        [tfs.keras.Embedding(1_000_000, 64), tf.keras.layers.Flatten(), ...]
    )
    ```

    Shapes: ids are integers of any shape (others are cast), and their vectors have that
    shape + `[output_dim]`, in the layer's compute dtype. An id that is negative or not
    below `input_dim` raises `tf.errors.InvalidArgumentError` on a CPU.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes the layer, which has another class if its table grows."""
        size = kwargs.get("input_dim", args[0] if args else None)
        if not isinstance(size, Dynamic):
            return super().__new__(cls, *args, **kwargs)
        if cls is not Embedding:
            raise ValueError(
                "A class that derives from tfs.keras.Embedding must have a table of "
                "fixed size: a table that grows has a class of its own, whose layer "
                f"yours may have as an attribute. Received: {cls.__name__} with {size}"
            )
        of_fixed = {name: kwargs.pop(name, None) for name in _OF_FIXED_TABLES}
        if unfit := [name for name, x in of_fixed.items() if x is not None]:
            raise ValueError(
                "A table that grows has no whole: make the layer without "
                f"{', '.join(unfit)}. Received: "
                + ", ".join(f"{name}={of_fixed[name]!r}" for name in unfit)
            )
        return DynamicEmbedding(*args, **kwargs)

    def __init__(self, *args: Any, shards: int | None = None, **kwargs: Any):
        # This comes before the base class's constructor, which may build the layer.
        self._tables: Tables | None = None
        if shards is not None and (
            isinstance(shards, bool)
            or not hasattr(shards, "__index__")
            or operator.index(shards) < 1
        ):
            raise ValueError(
                "shards must be None or a whole number of at least 1. Received: "
                f"shards={shards!r}"
            )
        self._shards = as_python(shards)
        super().__init__(
            *map(as_python, args),
            **{name: as_python(value) for name, value in kwargs.items()},
        )

    def build(self, input_shape: Any = None) -> None:
        """Makes the table, in one variable or in parts."""
        if self.built:
            return
        num_parts = self._num_parts()
        is_quantized = getattr(self, "quantization_mode", None)
        if is_quantized or (not compat.IS_KERAS_3 and self._shards is None):
            super().build(input_shape)
            return
        dtype = tf.as_dtype(self.variable_dtype).name
        table = layout.Table(_NAME, self.input_dim, self.output_dim, dtype)
        slab = layout.Slab(_NAME, [table], num_parts)
        self._tables = Tables([slab], named_by_layer=True)
        self._tables.make(
            self.add_weight,
            {_NAME: self.embeddings_initializer},
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
        )
        if num_parts == 1:
            (variable,) = self._tables.all_variables()
            setattr(self, compat.NAME_OF_EMBEDDINGS, variable)
        else:
            track(self, self._tables, whole=compat.NAME_OF_EMBEDDINGS)
        self.built = True
        if getattr(self, "lora_rank", None):
            self.enable_lora(self.lora_rank)

    def _num_parts(self):
        whole = [
            name
            for name in ("lora_rank", "quantization_mode", "embeddings_constraint")
            if getattr(self, name, None)
        ]
        if not _adds_up(self.embeddings_regularizer):
            whole.append("embeddings_regularizer of all of it")
        if self._shards is not None:
            if self._shards > 1 and whole:
                raise ValueError(
                    f"A table in parts has no {' and '.join(whole)}: use shards=1. "
                    f"Received: shards={self._shards}"
                )
            return min(self._shards, self.input_dim)
        if whole or not compat.IS_KERAS_3:
            return 1
        size = tf.as_dtype(self.variable_dtype).size * self.input_dim * self.output_dim
        return max(1, min(num_parts(), size // _MIN_PART_BYTES))

    @property
    def _in_parts(self):
        return self._tables is not None and self._tables.num_parts > 1

    def __getattr__(self, name: str) -> Any:
        # Python calls this for missing attributes. A table in parts lacks the one
        # variable, which Keras 3's `embeddings` returns.
        found = self.__dict__.get("_tables")
        if name != compat.NAME_OF_EMBEDDINGS or found is None:
            # This raises the error again, which may be that of a property.
            return super().__getattribute__(name)
        return found.as_tensor(found.slabs[0])

    def call(self, inputs: Any) -> Any:
        """Looks up the rows of ids.

        `inputs`: ids: integers of any shape; they may be ragged. Returns their vectors,
        of shape `inputs.shape + [output_dim]`.
        """
        ids = as_integers(inputs, f"layer {self.name!r}", self.input_dim)
        # With LoRA, vectors are computed from more than the table.
        if self._tables is None or getattr(self, "lora_enabled", False):
            return super().call(ids)
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self.call(ids.flat_values))
        asked = [lookup.Feature(self.name, self._tables.by_name[_NAME], ids)]
        # It is not known whether a gradient will be asked for. In one process stock ops
        # serve both cases well.
        ((_, vectors),) = self._tables.look_up(asked, training=False)
        return tf.cast(vectors, self.compute_dtype)

    def save_own_variables(self, store: Any) -> None:
        """Saves the table as one, whatever its parts; called by Keras."""
        if self._in_parts:
            store["0"] = self._tables.read(_NAME)
        else:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Loads a table that was saved as one; called by Keras."""
        if self._in_parts:
            self._tables.write(_NAME, store["0"][...])
        else:
            super().load_own_variables(store)

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        """Does the same as the base class; refuses a table in parts."""
        self._check_whole("enable_lora")
        super().enable_lora(*args, **kwargs)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Does the same as the base class; refuses a table in parts."""
        self._check_whole("quantize")
        super().quantize(*args, **kwargs)
        self._tables = None  # The variable does not hold vectors any more.

    def _check_whole(self, what):
        if self._in_parts:
            raise ValueError(
                f"{what} needs the table of layer {self.name!r} whole: make the layer "
                "with shards=1."
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal layer of it."""
        config = super().get_config()
        if self._shards is not None:
            config["shards"] = self._shards
        return config

    def __reduce__(self) -> Any:
        state = self.get_config(), self.get_weights() if self.built else None
        if type(self) is Embedding:
            # Pickle would look for the class in `keras.layers`, its `__module__`.
            return _embedding, state
        return made_again, (type(self), *state)


def _adds_up(regularizer: Any) -> bool:
    """Returns whether penalties of the parts of a table add up to that of the table."""
    return (
        regularizer is None
        or getattr(regularizer, "sums_over_elements", False)
        # A class that derives from them may compute something else.
        or any(type(regularizer).__call__ is kind.__call__ for kind in _SUMS)
    )


def _embedding(*state: Any) -> Embedding:
    return made_again(Embedding, *state)
