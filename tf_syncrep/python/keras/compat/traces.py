"""The traces of a `tf.function`.

All private names here were checked with TensorFlow 2.15.1 and 2.22.0rc0.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Private: TensorFlow itself looks up the function in this module.
from tensorflow.python.eager.polymorphic_function import (  # pyright: ignore
    function_context,
)


def only_trace_of(function: Any) -> Any:
    """Returns the only concrete function of a `tf.function`, or that one itself.

    Private: `get_concrete_function` finds it by the arguments, of which those that are
    on workers have no public type; and to find it takes about as long as a call.

    Args:
        function: a `tf.function`.

    Returns:
        The concrete function; `function` if there is none, or more than one.
    """
    traces = function._list_all_concrete_functions()
    return traces[0] if len(traces) == 1 else function


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
