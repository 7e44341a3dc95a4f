"""What a `tf.function` traces.

The private name here was checked with TensorFlow 2.15.1 and 2.22.0rc0.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import IS_KERAS_3


def traced_by(function: Any) -> Callable[..., Any]:
    """Returns what a `tf.function` traces: its Python function, after AutoGraph.

    Private: nothing public tells whether a function was made with `autograph=False`.
    """
    plain = function.python_function
    return converted(plain) if function._autograph else plain


def as_keras_traces(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step as `Model.fit` traces it: in Keras 2, after AutoGraph.

    Steps, layers and losses may then branch on tensors.
    """
    return function if IS_KERAS_3 else converted(function)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function after AutoGraph, which holds for what it calls as well."""

    # AutoGraph takes what a function calls as it is, and says so, if it has no source
    # text, for example. It does not do so with the function that it is given.
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    try:
        return tf.autograph.to_graph(call)
    except Exception:  # In a frozen program this file has no source text either.
        return function
