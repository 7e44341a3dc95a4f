"""What a function uses besides its arguments, found while it is traced.

All private names here were checked with TensorFlow 2.15.1 and 2.22.0rc0.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def value_at_call(
    name: str, value: Callable[[], Any], spec: tf.TensorSpec
) -> tf.Tensor:
    """Returns a tensor that has the value of a Python function at each call.

    Private: with public functions, each argument has to be there before it is known
    whether what is traced uses it; and TensorFlow sends unused arguments, too.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    return graph.capture_call_time_value(value, spec, key=f"tf_syncrep/{name}")


def captured_tensors(function: Any) -> list[tf.Tensor]:
    """Returns the eager tensors that a concrete function uses.

    Private: the public `captured_inputs` computes all values of `value_at_call`.
    """
    return [tensor for tensor, _ in function.graph.captures]
