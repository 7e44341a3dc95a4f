"""Stochastic rounding with TensorFlow's own ops, where our kernels cannot run.

The random numbers are those of TensorFlow's stateless generator, by the place of a row
in the gradient, and not those of the kernels.
"""

import tensorflow as tf

from tf_syncrep.python.keras.compat.gradient_sums import places_of_equal
from tf_syncrep.python.keras.optimizers.tf_ops import handle_ops
from tf_syncrep.python.ops.stochastic_rounding import StochasticRounding

# How many bits a float32 has that the dtype does not have.
_BITS = {tf.half: 13, tf.bfloat16: 16}
# A half below this is a multiple of 2^-24; these bits behind the point are rounded.
_SMALLEST_NORMAL_HALF, _DENORMAL_BITS = 2.0**-14, 20


def narrow(
    values: tf.Tensor,
    dtype: tf.DType,
    rounding: StochasticRounding | None,
    rows: tf.Tensor | None = None,
) -> tf.Tensor:
    """Casts the new values of a variable to its dtype, and counts the update.

    `rounding`: how to round; None for rounding to nearest.
    """
    if rounding is None:
        return tf.cast(values, dtype)
    handle_ops.add(rounding.count, tf.constant([-1], tf.int64))
    (count,) = tf.unstack(handle_ops.read(rounding.count, tf.int64), 1)
    # Parts of one table have the same seed.
    seed = rounding.seed * 1_000_003 + rounding.first_row
    # No dtype needs more bits than these.
    draws = tf.random.stateless_uniform(
        tf.shape(values), tf.stack([seed, count]), 0, 2**_DENORMAL_BITS, tf.int32
    )
    if rows is not None:
        draws = tf.gather(draws, places_of_equal(rows))
    return round_by(values, dtype, draws)


def round_by(values: tf.Tensor, dtype: tf.DType, draws: tf.Tensor) -> tf.Tensor:
    """Rounds float32 values by random bits.

    `draws`: an int32 for each value, of which the lowest bits are used.
    """
    lost = 2 ** _BITS[dtype] - 1
    bits = tf.bitcast(values, tf.int32) + tf.bitwise.bitwise_and(draws, lost)
    rounded = tf.bitcast(tf.bitwise.bitwise_and(bits, ~lost), tf.float32)
    if dtype == tf.half:
        rounded = _round_denormals(values, draws, rounded)
    is_inside = tf.abs(values) < tf.cast(dtype.max, tf.float32)
    return tf.cast(tf.where(is_inside, rounded, values), dtype)


def _round_denormals(values, draws, rounded):
    """Replaces those that a half has as denormals."""
    size = tf.abs(values)
    is_denormal = size < _SMALLEST_NORMAL_HALF
    unit = 2.0 ** (24 + _DENORMAL_BITS)
    fixed_point = tf.cast(tf.where(is_denormal, size, 0.0) * unit, tf.int32)
    fixed_point += tf.bitwise.bitwise_and(draws, 2**_DENORMAL_BITS - 1)
    steps = tf.bitwise.right_shift(fixed_point, _DENORMAL_BITS)
    denormal = tf.sign(values) * tf.cast(steps, tf.float32) * 2.0**-24
    return tf.where(is_denormal, denormal, rounded)
