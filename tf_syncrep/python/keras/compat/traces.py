"""The traces of a `tf.function`.

All private names here were checked with TensorFlow 2.15.1 and 2.22.0rc0.
"""

import contextlib
from collections.abc import Iterator

# Private: TensorFlow itself looks up the function in this module.
from tensorflow.python.eager.polymorphic_function import (  # pyright: ignore
    function_context,
)

from tf_syncrep.python.keras.compat.replaced import replaced


@contextlib.contextmanager
def traced_anew() -> Iterator[None]:
    """Within this context, `tf.function`s that a graph calls are traced for it.

    A trace of theirs for another graph may have captured tensors of that one, or
    variables for which others stand now (`compat/handles.py`).

    Private: no public function says which trace of a function a call takes.
    """
    key, stock = object(), function_context.make_function_context

    def make_function_context(*args, **kwargs):
        return stock(*args, **kwargs), key

    with replaced(function_context, "make_function_context", make_function_context):
        yield
