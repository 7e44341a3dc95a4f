"""Hyper-parameters of the v1 optimizers: numbers, tensors, variables, callables."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.base.arguments import check_number

# The values that a user may give for a hyper-parameter.
HyperParameter = float | tf.Tensor | tf.Variable | Callable[[], Any]


def check(name: str, value: Any, *, below: float = math.inf) -> Any:
    """Checks one hyper-parameter, as far as possible before it is used."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return check_number(name, value, below=below)
    if isinstance(value, (tf.Tensor, tf.Variable)):
        if not value.shape.is_compatible_with([]):
            raise ValueError(
                f"{name} must be a scalar. Received: {name} of shape {value.shape}"
            )
        return value
    if callable(value):
        return value
    raise TypeError(
        f"{name} must be a number, a scalar tensor, a variable, or a callable without "
        f"arguments that returns one of these. Received: {name}={value!r}"
    )


def evaluate(name: str, value: HyperParameter, *, below: float = math.inf) -> Any:
    """Returns the value for the step that is being built or run."""
    if callable(value) and not isinstance(value, (tf.Tensor, tf.Variable)):
        value = check(name, value(), below=below)
    if isinstance(value, float):
        return value
    return tf.convert_to_tensor(value, name=name)  # pyright: ignore[reportArgumentType]


def evaluate_as_initial_value(
    name: str, value: HyperParameter, dtype: tf.DType, *, below: float = math.inf
) -> tf.Tensor:
    """Returns the value as the initial value of a variable."""
    if callable(value) and not isinstance(value, (tf.Tensor, tf.Variable)):
        value = check(name, value(), below=below)
    if isinstance(value, float):
        return tf.constant(value, dtype)
    if isinstance(value, tf.Variable):
        return tf.cast(initial_value(value), dtype)
    constant = tf.get_static_value(value)
    if constant is not None:
        return tf.constant(constant, dtype, shape=[])
    if tf.executing_eagerly() and tf.is_symbolic_tensor(value):
        raise ValueError(
            f"{name} must be a number, a variable or a callable where the optimizer is "
            "used in a tf.function: slots that start from it are made outside of the "
            f"function. Received: {name}={value}"
        )
    return tf.cast(tf.ensure_shape(value, []), dtype)


def initial_value(variable: tf.Variable) -> tf.Tensor:
    """Returns the value from which slots, or variables based on this one, start.

    In a graph that is its initial value, which is available before it is initialized.
    """
    if tf.executing_eagerly():
        return variable.read_value()
    return variable.initial_value
