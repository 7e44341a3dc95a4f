"""Several values for another task in one tensor: each tensor sent costs a call."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def join(scalars: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes one tensor of several scalars of one dtype.

    Not by `tf.stack`: what is an element of a stack, Grappler takes from its origin.

    Args:
        scalars: the scalars.

    Returns:
        A vector of them; its elements are taken out where they are needed.
    """
    return tf.concat([tf.expand_dims(scalar, 0) for scalar in scalars], axis=0)
