"""Optimizers that were written into a configuration."""

import copy
from typing import Any

import tensorflow as tf


def optimizer_from(config: dict[str, Any], custom_objects: Any = None) -> Any:
    """Makes an optimizer of what `tf.keras.optimizers.serialize` returned.

    Args:
        config: what it returned.
        custom_objects: classes by name.

    Returns:
        The optimizer, without state.
    """
    # A copy: Keras puts objects in the place of what it has read.
    config = copy.deepcopy(config)
    # While Keras 2 loads an .h5 file it knows no registered names, and takes a class
    # for its own one of that name in small letters.
    name = config.get("registered_name")
    registered = name and tf.keras.utils.get_registered_object(name, custom_objects)
    if not registered:
        return tf.keras.optimizers.deserialize(config, custom_objects)
    with tf.keras.utils.custom_object_scope(custom_objects or {}):
        return registered.from_config(config["config"])
