"""Variables that stand for others for a while."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def standing_for(
    variables: Sequence[Any], handles: Sequence[tf.Tensor]
) -> Iterator[None]:
    """Has whoever reads or writes these variables read and write others.

    So the code of a metric runs as it is, on state that is somewhere else. In a
    function that is traced meanwhile all functions called in it are traced again,
    since earlier traces have other handles.

    Private: all methods of a `tf.Variable` take the resource from `_handle` (checked
    with TensorFlow 2.15.1 and 2.21.0), which nothing public can set.

    Args:
        variables: TensorFlow's variables.
        handles: of variables of the same shapes and types.
    """
    own = [variable._handle for variable in variables]
    try:
        for variable, handle in zip(variables, handles, strict=True):
            variable._handle = handle
        with contextlib.ExitStack() as stack:
            if not tf.executing_eagerly():
                # A function of the device is part of what tells traces apart.
                graph = tf.compat.v1.get_default_graph()
                stack.enter_context(graph.device(lambda op: op.device))
            yield
    finally:
        for variable, handle in zip(variables, own, strict=True):
            variable._handle = handle
