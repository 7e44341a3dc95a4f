"""An embedding layer that looks rows up where the table is."""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat

__all__ = ["Embedding"]


@compat.saved_as_stock
class Embedding(tf.keras.layers.Embedding):
    """`tf.keras.layers.Embedding` for tables that are on parameter servers.

    That of Keras 3 reads its whole table in each step, from whatever task holds it,
    and then takes the rows. This one, like that of Keras 2, has the task look up the
    rows, so that a batch costs what its rows cost. All else is the base class's:
    arguments, weights, configuration, masks. With Keras 2 it is the base class.

    A `.keras` file names it as Keras's own layer, and opens without tf_syncrep. Where
    tf_syncrep is imported, it is this one again; with Keras 2 it is Keras's own.

    Negative ids are no ids; in Keras 3's own layer they count from the end.

    Example:
    ```python
    model = tf.keras.Sequential(
        [tfs.keras.Embedding(1_000_000, 64), tf.keras.layers.Flatten(), ...]
    )
    ```

    Shapes: ids of any shape, integers (others are cast to int32), give vectors of that
    shape + `[output_dim]`, in the layer's compute dtype. An id that is negative or not
    below `input_dim` raises `tf.errors.InvalidArgumentError` on a CPU.
    """

    def call(self, inputs: Any) -> Any:
        """Looks up the rows of ids.

        Args:
            inputs: ids; a tensor of integers of any shape.

        Returns:
            Their vectors, of shape `inputs.shape + [output_dim]`.
        """
        # What these make of the table is no variable, and has to be read.
        is_changed = getattr(self, "lora_enabled", False) or getattr(
            self, "quantization_mode", None
        )
        if not compat.IS_KERAS_3 or is_changed or not tf.is_tensor(inputs):
            return super().call(inputs)
        if inputs.dtype not in (tf.int32, tf.int64):
            inputs = tf.cast(inputs, tf.int32)
        table = compat.native(self.embeddings)
        return tf.cast(tf.nn.embedding_lookup(table, inputs), self.compute_dtype)
