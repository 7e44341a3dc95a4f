"""TensorFlow's own variable of a variable of whatever Keras."""

from typing import Any

import tensorflow as tf

# Keras 3 alone has an `ops` name space.
IS_KERAS_3 = hasattr(tf.keras, "ops")

if IS_KERAS_3:
    # Private: Keras opens such a scope around layers of mixed precision, in which the
    # public `value` of a variable is all of it, read and cast; nothing public ends it.
    # Private: nothing public tells whether a `keras.StatelessScope` is open.
    from keras.src.backend import (
        AutocastScope,  # pyright: ignore
        in_stateless_scope,  # pyright: ignore
    )

    def native(variable: Any) -> Any:
        """The `tf.Variable` of a variable, also where Keras casts variables.

        Args:
            variable: a variable of TensorFlow or Keras.

        Returns:
            The variable. In a `keras.StatelessScope` the tensor in its place.
        """
        if not isinstance(variable, tf.keras.Variable):
            return variable
        with AutocastScope(None):
            return variable.value

else:

    def in_stateless_scope() -> bool:
        """Keras 2 has none."""
        return False

    def native(variable: Any) -> Any:
        """The variable itself: those of Keras 2 are TensorFlow's."""
        return variable
