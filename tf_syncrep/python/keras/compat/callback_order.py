"""Which callbacks of a run come after one of them.

Private, since Keras tells a callback of its model, and of no other callback: only the
`CallbackList` of a run knows them, and it is a local variable of `Model.fit`. So it is
looked for in the frames of the calls that have led to the callback (checked with Keras
3.16, tf_keras 2.21 and Keras 2.15).
"""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

#: Whether EarlyStopping restores weights when a training ends. Keras 2.15, which comes
#: with TensorFlow 2.15 alone, does it at the end of the last epoch.
RESTORES_AT_THE_END = not tf.__version__.startswith("2.15.")


def callbacks_behind(callback: Any) -> list[Any]:
    """Returns the callbacks that come after one; to be called in one of its hooks.

    If no `CallbackList` with the callback has called the hook, there are none.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, tf.keras.callbacks.CallbackList):
            if callback not in caller.callbacks:
                return []
            return caller.callbacks[caller.callbacks.index(callback) + 1 :]
        frame = frame.f_back
    return []
