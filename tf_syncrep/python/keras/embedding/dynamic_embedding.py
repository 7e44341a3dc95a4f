"""A layer of one table that grows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python, check_count
from tf_syncrep.python.embedding import layout, lookup
from tf_syncrep.python.keras.cluster import num_parts
from tf_syncrep.python.keras.embedding import dynamic_files
from tf_syncrep.python.keras.embedding.config import size_as_json, size_from_json
from tf_syncrep.python.keras.embedding.growing_layer import GrowingLayer
from tf_syncrep.python.keras.embedding.ids import (
    as_keys,
    warn_of_narrow_inputs,
)
from tf_syncrep.python.keras.embedding.tracking import track_dynamic
from tf_syncrep.python.keras.embedding.weights import reduced
from tf_syncrep.python.keras.tables.growing.dynamic import Dynamic, row_initializer
from tf_syncrep.python.keras.tables.growing.dynamic_tables import (
    DynamicTables,
    KeysAndVectors,
)


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class DynamicEmbedding(GrowingLayer, tf.keras.layers.Layer):
    """The layer that `tfs.keras.Embedding` makes for a `tfs.keras.Dynamic`.

    Its table has the name of the layer.

    Raises ValueError: an argument has another value than these.
    """

    def __init__(
        self,
        input_dim: Dynamic,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        *,
        mask_zero: bool = False,
        **kwargs: Any,
    ):
        # Autocasting would round ids that come as floats.
        super().__init__(autocast=False, **kwargs)
        # The ops have no kernels for XLA.
        self.supports_jit = False
        self.input_dim = size_from_json(input_dim)
        self.output_dim = check_count("output_dim", as_python(output_dim))
        self.embeddings_initializer = tf.keras.initializers.get(embeddings_initializer)
        self.mask_zero = bool(mask_zero)
        # Keras' own layer sets it likewise.
        self.supports_masking = self.mask_zero
        self._row_initializer = row_initializer(
            self.embeddings_initializer,
            self.name,
            self.input_dim.max_rows,
            self.output_dim,
        )
        self._growing = self._lay_out(1)

    def _lay_out(self, num_parts):
        dtype = tf.as_dtype(self.variable_dtype).name
        table = layout.Table(
            self.name, self.input_dim.max_rows, self.output_dim, dtype, grows=True
        )
        slab = layout.DynamicSlab("embeddings", [table], num_parts)
        sizes = {self.name: self.input_dim}
        return DynamicTables([slab], sizes, self, named_by_layer=True)

    def build(self, input_shape: Any = None) -> None:
        """Makes the variables, whose shapes depend on no input."""
        del input_shape
        if self.built:
            return
        self._growing = self._lay_out(num_parts())
        self._growing.make(self.add_weight, {self.name: self._row_initializer})
        track_dynamic(self, self._growing)
        self.built = True

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Looks at the ids before Keras makes tensors of them."""
        warn_of_narrow_inputs(inputs, f"layer {self.name!r}")
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Looks ids up.

        `inputs`: integers or strings of any shape; they may be ragged. Returns their
        vectors, of shape `inputs.shape + [output_dim]`.
        """
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values, training))
        inputs = tf.convert_to_tensor(inputs)
        self._refuse_masked_strings(inputs)
        served = self._growing.served is not None
        ids = as_keys(inputs, f"layer {self.name!r}", served)
        asked = [lookup.Feature(self.name, self._growing.by_name[self.name], ids)]
        ((_, vectors),) = self._growing.look_up(asked, bool(training))
        return tf.cast(vectors, self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Masks id 0, if that stands for padding; called by Keras."""
        del mask
        self._refuse_masked_strings(inputs)
        # The operator takes Keras 3's symbolic ids, too, and `tf.not_equal` does not.
        return inputs != 0 if self.mask_zero else None

    def _refuse_masked_strings(self, inputs):
        if self.mask_zero and tf.as_dtype(inputs.dtype) == tf.string:
            raise ValueError(
                f"Layer {self.name!r} must be made without mask_zero for strings, none "
                "of which stands for padding. Received: mask_zero=True and ids of "
                "dtype string"
            )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the vectors; called by Keras."""
        return (*input_shape, self.output_dim)

    def get_embedding_table(self) -> KeysAndVectors:
        """Returns the keys and vectors of the table, by ascending key."""
        return self._growing.read(self.name)

    def set_embedding_table(self, table: Any) -> None:
        """Sets the keys and vectors of the table; other keys lose their rows.

        `table`: keys and vectors, as `get_embedding_table` returns them.
        """
        self._growing.write(self.name, table)

    def save_own_variables(self, store: Any) -> None:
        """Saves the rows by key; called by Keras."""
        dynamic_files.save(self._growing, store)

    def load_own_variables(self, store: Any) -> None:
        """Loads rows that were saved by key; called by Keras."""
        dynamic_files.load(self._growing, store, self.name)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal layer of it."""
        return {
            **super().get_config(),
            "input_dim": size_as_json(self.input_dim),
            "output_dim": self.output_dim,
            "embeddings_initializer": tf.keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "mask_zero": self.mask_zero,
        }

    def __reduce__(self) -> Any:
        return reduced(self)
