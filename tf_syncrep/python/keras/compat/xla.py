"""Whether the function that is being traced will be compiled by XLA."""

import tensorflow as tf

# Private: while a function is traced, nothing public tells whether it has
# `jit_compile=True`.
from tensorflow.python.ops import control_flow_util  # pyright: ignore


def compiled_by_xla() -> bool:
    """Returns whether XLA will compile the ops made now.

    XLA does not support custom ops. It compiles a `tf.function` with
    `jit_compile=True`, and the functions that are traced from there.
    """
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)
