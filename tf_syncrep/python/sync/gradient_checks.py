"""The checks of a replica's own gradient before it is handed in.

So an error concerns only this replica: nothing was pushed, and the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_syncrep.python.ops import embedding_ops
from tf_syncrep.python.sync import gate_placement
from tf_syncrep.python.sync.gradients import identity

Gradient = tf.Tensor | tf.IndexedSlices


def check_against(gradient: Gradient, variable) -> tf.Operation:
    """Builds the check that a gradient fits its variable.

    It checks only what is known of the variable's shape when the graph is built: a look
    at the variable itself would fetch it from its parameter server.

    The operation raises `tf.errors.InvalidArgumentError`.
    """
    name = f"The gradient of {variable.name}"
    if not variable.shape.is_fully_defined():
        return tf.no_op()
    shape = variable.shape.as_list()
    if isinstance(gradient, tf.IndexedSlices):
        return _check_slices(gradient, shape, name)
    if gradient.shape.is_fully_defined() and gradient.shape == variable.shape:
        return tf.no_op()
    return _assert_shape(gradient, shape, f"{name} must have shape")


def checked(gradient: Gradient, variable) -> Gradient:
    """Builds the same check into a gradient.

    The gradient's values become available only after the check. Its indices stay the
    same tensor, which may be on the variable's task already. A gradient that an op for
    tables that grow made beside the variable stays as it is: it fits, and would travel
    to the worker and back only to be checked.
    """
    if _is_made_beside(variable, gradient):
        return gradient
    with tf.control_dependencies([check_against(gradient, variable)]):
        return identity(gradient)


def _is_made_beside(variable, gradient: Gradient) -> bool:
    return (
        isinstance(gradient, tf.IndexedSlices)
        and embedding_ops.are_embedding_rows(gradient.indices)
        and gradient.values.op is gradient.indices.op
        and gate_placement.on_same_task(gradient.values.device, variable.device)
    )


def all_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Builds the check that no gradient contains a NaN or an infinity."""
    return tf.reduce_all(
        [
            tf.reduce_all(
                tf.math.is_finite(
                    gradient.values
                    if isinstance(gradient, tf.IndexedSlices)
                    else gradient
                )
            )
            for gradient in gradients
        ]
    )


def _check_slices(gradient: tf.IndexedSlices, shape, name: str) -> tf.Operation:
    indices = tf.cast(gradient.indices, tf.int64)
    in_range = tf.reduce_all((indices >= 0) & (indices < shape[0]))
    return tf.group(
        tf.debugging.Assert(
            in_range, [f"{name} must have indices in [0, {shape[0]}), but has", indices]
        ),
        _assert_shape(
            gradient.values,
            tf.concat([tf.shape(indices), tf.constant(shape[1:], tf.int32)], axis=0),
            f"{name} must have values of shape",
        ),
    )


def _assert_shape(tensor: tf.Tensor, expected, rule: str) -> tf.Operation:
    received = tf.shape(tensor)
    expected = tf.convert_to_tensor(expected, tf.int32)
    # If the ranks differ, only the common part is compared.
    size = tf.minimum(tf.size(received), tf.size(expected))
    same = tf.reduce_all(tf.equal(received[:size], expected[:size]))
    return tf.debugging.Assert(
        same & tf.equal(tf.size(received), tf.size(expected)),
        [rule, expected, "but has shape", received],
    )
