"""The settings of an optimizer, which become constants of an update that is traced."""

import numbers
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Objects that have settings themselves.
_OWNERS: Any = (
    tf.keras.optimizers.Optimizer,
    tf.keras.optimizers.schedules.LearningRateSchedule,
)
_PLAIN = (type(None), numbers.Number, str, re.Pattern, np.generic)
_NO_SETTING = object()


def settings_of(owner: Any) -> dict[str, Any]:
    """Returns the settings of an optimizer, or of a schedule, by name.

    They are equal as long as an update that was traced is the optimizer's own. They are
    attributes, since a configuration leaves out some of them, a user's optimizer need
    not have one, and a learning rate would be read from a server for it. Variables,
    such as that of a learning rate, are no settings: an update reads them anew.
    """
    settings = {name: _setting(value) for name, value in vars(owner).items()}
    return {name: x for name, x in settings.items() if x is not _NO_SETTING}


def _setting(value: Any) -> Any:
    """Returns what remains as it is when the value itself is changed."""
    if isinstance(value, _OWNERS):
        return value, settings_of(value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        values = [_setting(x) for x in value.values()]
        if not any(x is _NO_SETTING for x in values):
            return dict(zip(value, values, strict=True))
    elif isinstance(value, (list, tuple)):
        values = [_setting(x) for x in value]
        if not any(x is _NO_SETTING for x in values):
            return tuple(values)
    elif isinstance(value, (set, frozenset)):
        if all(isinstance(x, _PLAIN) or callable(x) for x in value):
            return frozenset(value)
    elif isinstance(value, _PLAIN) or callable(value):
        return value
    return _NO_SETTING
