"""The names by which files of Keras know layers, and what files hold of slots."""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

if IS_KERAS_3:
    # Private: it has the names under which Keras saves classes. The public decorator
    # would write this package's name, and such a file could be opened only with this
    # package.
    from keras.src.saving import object_registration  # pyright: ignore


def saved_as_stock(layer_class: Any) -> Any:
    """Makes Keras save a subclass of one of its layers as that layer.

    A class decorator. The subclass must have the name, the configuration and the
    variables of its base class, which must be public in `keras.layers`.

    A file names a class by its module, its name, and the name under which it was
    registered, which is looked up first. Keras 3 takes "keras.layers" and "Embedding"
    for its own layer if no registered name is given. An empty name counts as none, but
    can still be looked up: in a process with this package it leads to this package's
    layer. Keras 2 loads Keras's own layer.
    """
    names = tf.keras.utils.get_custom_objects()
    # Earlier versions of this package saved files with this name.
    names[f"tf_syncrep>{layer_class.__name__}"] = layer_class
    layer_class.__module__ = "keras.layers"
    if IS_KERAS_3:
        names[""] = layer_class
        object_registration.GLOBAL_CUSTOM_NAMES[layer_class] = ""
    return layer_class


def holds_numbered_slots(store: Any) -> bool:
    """Returns whether a file has slots that Keras has saved by their numbers."""
    if hasattr(store, "sharding_config"):
        return True  # There are several files, and the slots may be in another one.
    # The first two variables are the counter and the learning rate.
    return any(
        len(group) > 2 and all(key.isdigit() for key in group)
        for group in _variables_of_optimizers(store)
    )


def holds_values_of(slot: tf.Variable, store: Any) -> bool:
    """Returns whether an optimizer in a file has the values that a slot has now."""
    if hasattr(store, "sharding_config"):
        return True  # It may, in another one of several files.
    shape, values = tuple(slot.shape), None
    for group in _variables_of_optimizers(store):
        for saved in group.values():
            if saved.shape == shape and saved.dtype.itemsize == slot.dtype.size:
                values = slot.numpy().tobytes() if values is None else values
                if saved[...].tobytes() == values:
                    return True
    return False


def _variables_of_optimizers(store):
    """Returns the groups of a file in which Keras saves its optimizer's variables."""
    # The file itself is in Keras 3's store, or in h5py's group, which Keras 2 passes.
    file = getattr(store, "h5_file", None) or getattr(store, "file", None)
    found = []

    def visit(name, group):
        if name.split("/")[-1] == "vars":
            found.append(group)

    if file is not None and "optimizer" in file:
        file["optimizer"].visititems(visit)
    return found
