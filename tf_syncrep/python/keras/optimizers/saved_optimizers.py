"""Makes optimizers from the configurations in which they were saved."""

import copy
from typing import Any

import tensorflow as tf


def optimizer_from(config: dict[str, Any], custom_objects: Any = None) -> Any:
    """Makes an optimizer from what `tf.keras.optimizers.serialize` returned."""
    # Keras replaces what it has read by objects, so it gets a copy.
    config = copy.deepcopy(config)
    # While Keras 2 loads an .h5 file it knows no registered names, and would make its
    # own class of the same name.
    name = config.get("registered_name")
    registered = name and tf.keras.utils.get_registered_object(name, custom_objects)
    if not registered:
        made = tf.keras.optimizers.deserialize(config, custom_objects)
        # Keras 2 returns the name of those of its own that are not in a list: of Lion.
        if not isinstance(made, str):
            return made
        registered = getattr(tf.keras.optimizers, made)
    with tf.keras.utils.custom_object_scope(custom_objects or {}):
        return registered.from_config(config["config"])
