"""Files that Keras writes and reads: how they name layers, and what else they hold."""

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


def holds_numbered_slots(store: Any) -> bool:
    """Whether a file has slots that an optimizer of Keras has saved by their numbers.

    Args:
        store: what Keras gives a layer to load its variables of. A dictionary is no
            file, and has none.
    """
    if hasattr(store, "sharding_config"):
        return True  # Several files, of which this may be another one.
    # The file itself: of Keras 3's store, or of h5py's group, which Keras 2 gives.
    file = getattr(store, "h5_file", None) or getattr(store, "file", None)
    if file is None or "optimizer" not in file:
        return False
    found = []

    def visit(name, group):
        # Two are the counter and the learning rate.
        if name.split("/")[-1] == "vars" and len(group) > 2:
            found.append(all(key.isdigit() for key in group))

    file["optimizer"].visititems(visit)
    return any(found)
