"""The averages of a model's weights, of optimizers with `use_ema`."""

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
