"""Inputs that the ops of all update rules take alike."""

from typing import Any

import tensorflow as tf


def slot_dtype(dtype: Any) -> tf.DType:
    """Returns the dtype of the slots and hyper-parameters of a variable of `dtype`.

    In bfloat16 arithmetic 1 - 0.999 is 0, and in half precision an epsilon of 1e-8 is
    0. So both have their slots in float32.
    """
    return tf.float64 if tf.as_dtype(dtype).base_dtype == tf.float64 else tf.float32


def handles(*variables: Any) -> list[Any]:
    """Returns the resource handle of each variable; handles stay as they are."""
    return [x.handle if isinstance(x, tf.Variable) else x for x in variables]


def gradient(grad: Any, var: Any) -> tf.Tensor:
    """Returns a gradient as a tensor.

    `grad`: a tensor, or numbers, which take var's dtype if they have none.
    """
    hint = var.dtype if isinstance(var, tf.Variable) else None
    return tf.convert_to_tensor(grad, dtype_hint=hint)


def scalars(dtype: tf.DType, *values: Any) -> list[tf.Tensor]:
    """Returns hyper-parameters as tensors; tensors keep their dtype."""
    return [tf.convert_to_tensor(value, dtype_hint=dtype) for value in values]
