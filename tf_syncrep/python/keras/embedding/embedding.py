"""An embedding layer that looks rows up where the table is, or its parts are."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding import layout, lookup
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.embedding import tables
from tf_syncrep.python.keras.embedding.ids import as_integers
from tf_syncrep.python.keras.embedding.tracking import track, track_whole
from tf_syncrep.python.sync.arguments import as_python

__all__ = ["Embedding"]

# What a part of a table has to come to, to be worth messages of its own.
_MIN_PART_BYTES = 256 << 10


@compat.saved_as_stock
class Embedding(tf.keras.layers.Embedding):
    """`tf.keras.layers.Embedding` for tables that are on parameter servers.

    That of Keras 3 reads its whole table in each step, from whatever task holds it,
    and then takes the rows. Here the task looks up the rows, so that a batch costs what
    its rows cost; and a large table is spread over all parameter servers, as those of
    `tfs.keras.DistributedEmbedding` are. All else is the base class's: arguments,
    configuration, masks. With Keras 2 it is the base class, unless `shards` is given.

    A `.keras` file names it as Keras's own layer, and opens without tf_syncrep, unless
    `shards` is given. Where tf_syncrep is imported, it is this one again; with Keras 2
    it is Keras's own. A table in parts is saved as one.

    Negative ids are refused; in Keras 3's own layer they count from the end.

    Args:
        *args: of the base class: `input_dim`, `output_dim`, and so on.
        shards: into how many parts to part the table, whose rows take turns; 1 for one
            variable. None: under ParameterServerStrategy with Keras 3, one on each
            parameter server as long as each is of 256 KiB or more; one variable
            elsewhere, and where LoRA, quantisation or a constraint need it whole.
        **kwargs: of the base class.

    Raises:
        ValueError: `shards` is not a number of at least 1, or is above 1 together with
            something that needs the whole table.

    Example:
    ```python
    model = tf.keras.Sequential(
        [tfs.keras.Embedding(1_000_000, 64), tf.keras.layers.Flatten(), ...]
    )
    ```

    Shapes: ids of any shape, integers (others are cast), give vectors of that
    shape + `[output_dim]`, in the layer's compute dtype. An id that is negative or not
    below `input_dim` raises `tf.errors.InvalidArgumentError` on a CPU.
    """

    def __init__(self, *args: Any, shards: int | None = None, **kwargs: Any):
        # Before the base class, which may build the layer.
        self._parted: tables.Tables | None = None
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
        num_shards = self._num_shards()
        if num_shards == 1:
            super().build(input_shape)
            tables.note_whole(getattr(self, compat.NAME_OF_EMBEDDINGS))
            return
        dtype = tf.as_dtype(self.variable_dtype).name
        table = layout.Table("embeddings", self.input_dim, self.output_dim, dtype)
        parted = tables.Tables([table], "auto", num_shards, stands_for_variable=True)
        parted.make(
            self.add_weight,
            {"embeddings": self.embeddings_initializer},
            regularizer=self.embeddings_regularizer,
        )
        track(self, parted)
        track_whole(self, compat.NAME_OF_EMBEDDINGS, parted)
        self._parted = parted
        self.built = True

    def _num_shards(self):
        whole = [
            name
            for name in ("lora_rank", "quantization_mode", "embeddings_constraint")
            if getattr(self, name, None)
        ]
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
        return max(1, min(tables.num_parts(), size // _MIN_PART_BYTES))

    def call(self, inputs: Any) -> Any:
        """Looks up the rows of ids.

        Args:
            inputs: ids; a tensor of integers of any shape.

        Returns:
            Their vectors, of shape `inputs.shape + [output_dim]`.
        """
        # These compute something from the table that is not a variable, so that the
        # table has to be read.
        is_changed = getattr(self, "lora_enabled", False) or getattr(
            self, "quantization_mode", None
        )
        is_stock = not compat.IS_KERAS_3 or is_changed or not tf.is_tensor(inputs)
        if tf.is_tensor(inputs):
            inputs = as_integers(inputs, f"layer {self.name!r}", self.input_dim)
        if self._parted is None and is_stock:
            return super().call(inputs)
        inputs = tf.convert_to_tensor(inputs)
        if self._parted is not None:
            (table,) = self._parted.by_name.values()
            asked = [lookup.Feature(self.name, table, inputs)]
            # Whether a gradient is asked for is not known; in one process the ops for
            # that are as good.
            (vectors,) = self._parted.look_up(asked, training=False)
            return tf.cast(vectors, self.compute_dtype)
        table = compat.native(self.embeddings)
        return tf.cast(tf.nn.embedding_lookup(table, inputs), self.compute_dtype)

    # That of Keras 2 is an attribute, which a property would hide from it.
    if compat.IS_KERAS_3:

        @property
        def embeddings(self) -> Any:
            """The table: a variable or, where it is in parts, a tensor of all of it."""
            if self._parted is None:
                return super().embeddings
            return tf.constant(self._parted.read("embeddings"))

    def get_weights(self) -> list[np.ndarray]:
        """The table, as one array."""
        if self._parted is not None:
            return [self._parted.read("embeddings")]
        return super().get_weights()

    def set_weights(self, weights: Any) -> None:
        """Sets the table, from one array."""
        if self._parted is None:
            super().set_weights(weights)
            return
        (table,) = weights
        self._parted.write("embeddings", np.asarray(table))

    def save_own_variables(self, store: Any) -> None:
        """Saves the table as one, however it is parted; called by Keras."""
        if self._parted is None:
            super().save_own_variables(store)
        else:
            store["0"] = self._parted.read("embeddings")

    def load_own_variables(self, store: Any) -> None:
        """Loads a table that was saved as one; called by Keras."""
        if self._parted is None:
            super().load_own_variables(store)
        else:
            self._parted.write("embeddings", store["0"][...])

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        """Does what the base class does; a table in parts cannot."""
        self._check_whole("enable_lora")
        super().enable_lora(*args, **kwargs)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Does what the base class does; a table in parts cannot."""
        self._check_whole("quantize")
        super().quantize(*args, **kwargs)

    def _check_whole(self, what):
        if self._parted is not None:
            raise ValueError(
                f"{what} needs the table of layer {self.name!r} whole: make the layer "
                "with shards=1."
            )

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` makes an equal layer of."""
        config = super().get_config()
        if self._shards is not None:
            config["shards"] = self._shards
        return config
