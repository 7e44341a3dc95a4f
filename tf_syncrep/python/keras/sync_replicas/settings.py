"""The settings of an optimizer, which become constants of an update that is traced."""

import numbers
import re
from typing import Any

import tensorflow as tf


def settings_of(optimizer: Any) -> dict[str, Any]:
    """Returns an optimizer's settings, and those of optimizers in it, by name.

    They are equal as long as an update that was traced is the optimizer's own. They are
    attributes, since a configuration leaves out some of them, a user's optimizer need
    not have one, and a learning rate would be read from a server for it. Variables,
    such as that of a learning rate, are no settings: an update reads them anew.
    """
    settings: dict[str, Any] = {}
    for name, value in vars(optimizer).items():
        if isinstance(value, tf.keras.optimizers.Optimizer):
            settings[name] = settings_of(value)
        elif isinstance(value, (list, tuple, set)):
            # Keras may change the object itself.
            if all(map(_is_setting, value)):
                settings[name] = frozenset(value)
        elif _is_setting(value):
            settings[name] = value
    return settings


def _is_setting(value: Any) -> bool:
    """Returns whether a value is one; a schedule is a callable."""
    kinds = (numbers.Number, str, re.Pattern)
    return value is None or isinstance(value, kinds) or callable(value)
