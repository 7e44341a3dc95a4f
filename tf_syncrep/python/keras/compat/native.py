"""TensorFlow's own variable behind a variable of any Keras."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Only Keras 3 has the name space `ops`.
IS_KERAS_3 = hasattr(tf.keras, "ops")


def refuse_old_keras_3(version: str) -> None:
    """Raises for a Keras 3 with which this package's optimizers would train wrongly.

    Stock optimizers count their steps in a method that ours override in Keras 3.5 to
    3.9, so these would not count. Before that the counter has another name.
    """
    major, minor, *_ = version.split(".")
    if (int(major), int(minor)) < (3, 10):
        raise ImportError(
            "tf_syncrep.keras needs Keras 3.10 or later: pip install 'keras>=3.10'. "
            f"Received: Keras {version}"
        )


if IS_KERAS_3:
    refuse_old_keras_3(tf.keras.__version__)

    # Private: Keras opens an `AutocastScope` around layers of mixed precision. In it
    # the public `value` of a variable reads and casts the whole variable, and nothing
    # public ends the scope. Nothing public tells whether a `keras.StatelessScope` is
    # open, and nothing public closes it for a while.
    from keras.src.backend import in_stateless_scope  # pyright: ignore
    from keras.src.backend.common import (
        AutocastScope,  # pyright: ignore
        global_state,  # pyright: ignore
    )

    @contextlib.contextmanager
    def variables_at_once() -> Iterator[None]:
        """Makes variables get their values as soon as they are made.

        If Keras asks a layer within another one for its output shapes, the layer's
        variables get their values later, when they cannot be placed any more.
        """
        scope = global_state.get_global_attribute("stateless_scope")
        global_state.set_global_attribute("stateless_scope", None)
        try:
            with tf.init_scope():
                yield
        finally:
            global_state.set_global_attribute("stateless_scope", scope)

    def native(variable: Any) -> Any:
        """Returns the `tf.Variable` behind a variable, even if Keras casts variables.

        Returns the variable; in a `keras.StatelessScope`, the tensor that replaces it.
        """
        if not isinstance(variable, tf.keras.Variable):
            return variable
        with AutocastScope(None):
            return variable.value

else:

    @contextlib.contextmanager
    def variables_at_once() -> Iterator[None]:
        """Keras 2 always makes variables at once."""
        yield

    def in_stateless_scope() -> bool:
        """Keras 2 has no such scope."""
        return False

    def native(variable: Any) -> Any:
        """Returns the variable itself: variables of Keras 2 are TensorFlow's."""
        return variable
