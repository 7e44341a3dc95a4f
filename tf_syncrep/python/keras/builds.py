"""A hook before the build of any optimizer.

Keras has no such hook. `build` of the base class is public, and each optimizer calls it
with the variables that it will train (checked with Keras 3.10 to 3.15, tf_keras and
Keras 2.15). The legacy optimizers of Keras 2 have no `build`, but all of them use
`apply_gradients` of their base class.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat

_looks: list[Callable[[Any, Sequence[Any]], None]] = []


def before_builds(look: Callable[[Any, Sequence[Any]], None]) -> None:
    """Makes Keras call a function before it builds an optimizer, from now on.

    `look`: a function that takes an optimizer and the variables that it will train. If
    it raises an error, the optimizer is not built.
    """
    if not _looks:
        base = tf.keras.optimizers.Optimizer
        base.build = _looked_at(base.build, lambda variables: variables)
        if not compat.IS_KERAS_3:
            legacy = tf.keras.optimizers.legacy.Optimizer
            legacy.apply_gradients = _looked_at(
                legacy.apply_gradients, lambda pairs: [v for _, v in pairs]
            )
    if look not in _looks:
        _looks.append(look)


def _looked_at(stock: Callable[..., Any], variables_of: Callable[[Any], Any]) -> Any:
    signature = inspect.signature(stock)
    _, first, *_ = signature.parameters

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments[first] = list(bound.arguments[first])
        for look in _looks:
            look(self, variables_of(bound.arguments[first]))
        return stock(*bound.args, **bound.kwargs)

    return method
