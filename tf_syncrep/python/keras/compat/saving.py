"""Whether Keras 3 traces a model with ids of a dtype that nobody has chosen."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

_here = threading.local()


def has_default_ids() -> bool:
    """Returns whether a model is traced for the default signature of a SavedModel.

    Keras 3 does so for each model in what is saved, besides the signatures that the
    user gives. The ids of subclassed models are float32 there.
    """
    return getattr(_here, "traces_default", False)


@contextlib.contextmanager
def _tracing() -> Iterator[None]:
    _here.traces_default = True
    try:
        yield
    finally:
        _here.traces_default = False


def note_default_signatures() -> None:
    """Makes Keras 3 tell `has_default_ids` when it traces; Keras 2 knows the dtype."""
    if not IS_KERAS_3:
        return
    # Private: TensorFlow asks each model for this function when it saves, and nothing
    # public tells that it is traced.
    stock = tf.keras.Model._default_save_signature

    def _default_save_signature(model: Any) -> Any:
        made = stock.fget(model)
        if made is None:
            return None

        def serving_default(inputs):
            with _tracing():
                return made.python_function(inputs)

        return tf.function(serving_default, input_signature=made.input_signature)

    tf.keras.Model._default_save_signature = property(_default_save_signature)
