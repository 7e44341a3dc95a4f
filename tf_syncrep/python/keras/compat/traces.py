"""The traces of a `tf.function`.

All private names here were checked with TensorFlow 2.15.1 and 2.22.0rc0.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

# Private: TensorFlow itself looks up the function in this module.
from tensorflow.python.eager.polymorphic_function import (  # pyright: ignore
    function_context,
)


@contextlib.contextmanager
def traced_anew() -> Iterator[None]:
    """Within this context, `tf.function`s that a graph calls are traced for it.

    A trace of theirs for another graph may have captured tensors of that one, or
    variables for which others stand now (`compat/handles.py`).

    Private: no public function says which trace of a function a call takes.
    """
    traced, key = tf.compat.v1.get_default_graph(), object()
    stock = function_context.make_function_context

    def make_function_context(*args, **kwargs):
        graph = tf.compat.v1.get_default_graph()
        while graph is not None and graph is not traced:
            graph = getattr(graph, "outer_graph", None)
        context = stock(*args, **kwargs)
        return context if graph is None else (context, key)

    function_context.make_function_context = make_function_context
    try:
        yield
    finally:
        function_context.make_function_context = stock
