"""What nothing public tells of an optimizer, and its end of a training."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import IS_KERAS_3


def finalize_variable_values(optimizer: Any, variables: Sequence[Any]) -> None:
    """Does what an optimizer does at the end of a training, with any Keras."""
    inner = optimizer
    while hasattr(inner, "inner_optimizer"):
        inner = inner.inner_optimizer
    if IS_KERAS_3 and inner.use_ema and _takes_by_position(inner):
        # Private: the base class has no public way to an average. What was not trained
        # is represented by its average, to which its own value is assigned.
        trained = {id(variable) for variable in variables}
        variables = [
            variable if id(variable) in trained else average
            for variable, average in zip(
                inner._trainable_variables,
                inner._model_variables_moving_average,
                strict=True,
            )
        ]
    optimizer.finalize_variable_values(variables)


def _takes_by_position(optimizer: Any) -> bool:
    """Returns whether averages are those of other variables if some were not trained.

    Private: Keras 3, checked up to 3.16.0.dev, takes them by position, right only if
    all variables are given with which the optimizer was built. Keras 2, and
    `SlotOptimizer`, which overrides this method, look up each variable's own.
    """
    method = "_overwrite_model_variables_with_average_value"
    base = tf.keras.optimizers.Optimizer
    return getattr(type(optimizer), method) is getattr(base, method)


def schedule_of(optimizer: Any) -> Any:
    """Returns the schedule or function that computes an optimizer's learning rate.

    Private: the public `learning_rate` is the present rate.

    Returns the argument of the constructor; None if it was a number.
    """
    rate = optimizer._learning_rate
    return rate if callable(rate) else None


def excludes_from_weight_decay(optimizer: Any) -> bool:
    """Returns whether `exclude_from_weight_decay` was called with anything.

    Private: it can be set, and not be asked.
    """
    name = "_exclude_from_weight_decay"
    kinds = ("", "_pattern", "_names")  # The second is Keras 3's, the third Keras 2's.
    return any(getattr(optimizer, name + kind, None) for kind in kinds)
