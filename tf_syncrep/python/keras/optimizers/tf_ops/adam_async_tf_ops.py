"""The updates of `adam_async_ops`, computed with TensorFlow's own ops.

They are used where the kernels cannot run: in functions that XLA compiles, and on
devices without a kernel. Shapes are static if those of the gradient are, as XLA
requires. The formulas are in `adam_async_ops`; unlike there, an update is not atomic,
and XLA and GPUs do not check indices. As there, what would be divided by zero is no
step.
"""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.gradient_sums import sum_by_row
from tf_syncrep.python.keras.optimizers.tf_ops import handle_ops
from tf_syncrep.python.keras.optimizers.tf_ops.rounding_tf_ops import narrow
from tf_syncrep.python.ops.stochastic_rounding import StochasticRounding
from tf_syncrep.python.ops.update_inputs import slot_dtype


def resource_apply_adam_async(
    var: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    beta1_power: tf.Tensor,
    beta2_power: tf.Tensor,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: tf.Tensor,
    use_nesterov: bool = False,
    *,
    rounding: StochasticRounding | None = None,
) -> None:
    """Makes a dense step; the arguments are the op's, with handles for variables."""
    dtype = slot_dtype(grad.dtype)
    beta1, beta2, epsilon = _scalars(dtype, beta1, beta2, epsilon)
    powers = [handle_ops.read(handle, dtype) for handle in (beta1_power, beta2_power)]
    alpha = _step_size(lr, *powers)
    g = tf.cast(grad, dtype)
    new_m = beta1 * handle_ops.read(m, dtype) + (1 - beta1) * g
    new_v = beta2 * handle_ops.read(v, dtype) + (1 - beta2) * g * g
    direction = beta1 * new_m + (1 - beta1) * g if use_nesterov else new_m
    step = tf.math.divide_no_nan(alpha * direction, tf.sqrt(new_v) + epsilon)
    new_var = tf.cast(handle_ops.read(var, grad.dtype), dtype) - step
    handle_ops.assign(m, new_m)
    handle_ops.assign(v, new_v)
    handle_ops.assign(var, narrow(new_var, grad.dtype, rounding))
    handle_ops.assign(beta1_power, powers[0] * beta1)
    handle_ops.assign(beta2_power, powers[1] * beta2)


def resource_sparse_apply_adam_async(
    var: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    beta1_power: tf.Tensor,
    beta2_power: tf.Tensor,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: tf.Tensor,
    indices: tf.Tensor,
    use_nesterov: bool = False,
    apply_sparse_rmsprop: bool = False,
    rmsprop_momentum: float = -1.0,
    count_empty: bool = False,
    *,
    rounding: StochasticRounding | None = None,
) -> None:
    """Makes a sparse step; the arguments are the op's, with handles for variables."""
    dtype = slot_dtype(grad.dtype)
    beta1, beta2, epsilon = _scalars(dtype, beta1, beta2, epsilon)
    rows, g = sum_by_row(tf.cast(grad, dtype), indices)
    new_v = beta2 * handle_ops.gather(v, rows, dtype) + (1 - beta2) * g * g
    if apply_sparse_rmsprop:
        momentum = beta1 if rmsprop_momentum < 0 else rmsprop_momentum
        divisor = new_v + epsilon
        step = lr * g * tf.math.rsqrt(divisor)
        step = tf.where(tf.equal(divisor, 0), tf.zeros_like(step), step)
        step = new_m = momentum * handle_ops.gather(m, rows, dtype) + step
    else:
        powers = [
            handle_ops.read(handle, dtype) for handle in (beta1_power, beta2_power)
        ]
        new_m = beta1 * handle_ops.gather(m, rows, dtype) + (1 - beta1) * g
        direction = beta1 * new_m + (1 - beta1) * g if use_nesterov else new_m
        step = tf.math.divide_no_nan(
            _step_size(lr, *powers) * direction, tf.sqrt(new_v) + epsilon
        )
        any_rows = count_empty or tf.size(indices) > 0
        for handle, power, beta in zip(
            (beta1_power, beta2_power), powers, (beta1, beta2), strict=True
        ):
            handle_ops.assign(handle, tf.where(any_rows, power * beta, power))
    new_var = tf.cast(handle_ops.gather(var, rows, grad.dtype), dtype) - step
    handle_ops.scatter(m, rows, new_m)
    handle_ops.scatter(v, rows, new_v)
    handle_ops.scatter(var, rows, narrow(new_var, grad.dtype, rounding, rows))


def _scalars(dtype, *values):
    """Converts numbers into the op's dtype, so that 1 - beta is the same as there."""
    return [tf.constant(value, dtype) for value in values]


def _step_size(lr, beta1_power, beta2_power):
    """Computes the learning rate with both bias corrections of the coming step."""
    beta1_power = tf.reshape(beta1_power, [])
    beta2_power = tf.reshape(beta2_power, [])
    return lr * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
