"""TensorFlow's own variable of a variable of whatever Keras."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Keras 3 alone has an `ops` name space.
IS_KERAS_3 = hasattr(tf.keras, "ops")

if IS_KERAS_3:
    # Private: Keras opens such a scope around layers of mixed precision, in which the
    # public `value` of a variable is all of it, read and cast; nothing public ends it.
    # Private: nothing public tells whether a `keras.StatelessScope` is open, nor
    # closes it for a while.
    from keras.src.backend import (
        AutocastScope,  # pyright: ignore
        in_stateless_scope,  # pyright: ignore
    )
    from keras.src.backend.common import global_state  # pyright: ignore

    @contextlib.contextmanager
    def variables_at_once() -> Iterator[None]:
        """A context in which variables have their values as soon as they are made.

        Those of a layer within another one, of which Keras asks the shapes of its
        outputs, get theirs later, where they cannot be placed any more.
        """
        scope = global_state.get_global_attribute("stateless_scope")
        global_state.set_global_attribute("stateless_scope", None)
        try:
            with tf.init_scope():
                yield
        finally:
            global_state.set_global_attribute("stateless_scope", scope)

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

    @contextlib.contextmanager
    def variables_at_once() -> Iterator[None]:
        """Keras 2 makes variables at once."""
        yield

    def in_stateless_scope() -> bool:
        """Keras 2 has none."""
        return False

    def native(variable: Any) -> Any:
        """The variable itself: those of Keras 2 are TensorFlow's."""
        return variable
