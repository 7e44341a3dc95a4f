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
    # While Keras 2 loads an .h5 file it knows registered classes by these alone.
    registered = tf.keras.utils.get_registered_object(
        config.get("registered_name") or "", custom_objects
    )
    if registered is not None:
        custom_objects = {**(custom_objects or {}), config["class_name"]: registered}
    # A copy: Keras puts objects in the place of what it has read.
    return tf.keras.optimizers.deserialize(copy.deepcopy(config), custom_objects)
