"""Whether the function that is being traced will be compiled by XLA."""

import tensorflow as tf

# Private: nothing public tells a function under `jit_compile=True` from another one
# while it is traced.
from tensorflow.python.ops import control_flow_util  # pyright: ignore


def compiled_by_xla() -> bool:
    """Whether ops made now will be compiled by XLA, which knows no custom ops.

    True inside of a `tf.function` with `jit_compile=True`, and inside of functions
    that are traced from there.
    """
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)
