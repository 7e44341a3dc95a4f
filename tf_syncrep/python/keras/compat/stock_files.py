"""Layers whose files Keras reads as its own where this package is not there."""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

if IS_KERAS_3:
    # Private: the names that Keras saves classes by. The public decorator writes the
    # package's name there, and a file with such a name opens only with the package.
    from keras.src.saving import object_registration  # pyright: ignore


def saved_as_stock(layer_class: Any) -> Any:
    """Makes Keras save a subclass of one of its layers as that layer.

    A class decorator. The subclass must have the name, the configuration and the
    variables of its base class, which is to be public in `keras.layers`.

    A file names a class by module and name, and by the name it was registered under,
    which is looked up first. Keras 3 takes "keras.layers" and "Embedding" for its own
    layer if no registered name is given. An empty one is none, and yet one that can be
    looked up: where this package is imported it leads to this package's layer. With
    Keras 2 it is Keras's own layer that is loaded.

    Args:
        layer_class: the subclass.

    Returns:
        The same class.
    """
    names = tf.keras.utils.get_custom_objects()
    # What files were saved by before that.
    names[f"tf_syncrep>{layer_class.__name__}"] = layer_class
    layer_class.__module__ = "keras.layers"
    if IS_KERAS_3:
        names[""] = layer_class
        object_registration.GLOBAL_CUSTOM_NAMES[layer_class] = ""
    return layer_class
