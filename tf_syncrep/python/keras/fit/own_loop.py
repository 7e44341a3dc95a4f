"""Where a model's own `fit`, `evaluate` and `predict` are called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tf_syncrep.python.keras import compat


@contextlib.contextmanager
def own_loop(model: Any, **data: Any) -> Iterator[None]:
    """Within this context a model's own methods are called, with data that they know.

    `model`: a model that is not under ParameterServerStrategy. `**data`: arguments with
    data, by name. Raises ValueError: the data is made by a function, which nobody would
    call.
    """
    for name, value in data.items():
        if callable(value):
            raise ValueError(
                "A function of a tf.distribute.InputContext is for "
                "ParameterServerStrategy. Without it, give what it returns: "
                f"{name}=function(tf.distribute.InputContext()). Received: "
                f"{name}={value!r}"
            )
    # Keras 3 keeps "auto", and fails with it in the loop.
    is_auto = compat.IS_KERAS_3 and model.steps_per_execution == "auto"
    if is_auto:
        model.steps_per_execution = 1
    try:
        yield
    finally:
        if is_auto:
            model.steps_per_execution = "auto"
