"""Files of Keras and checkpoints: their names, slots and signatures."""

import contextlib
import importlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

if IS_KERAS_3:
    # Private: it has the names under which Keras saves classes. The public decorator
    # would write this package's name, and such a file could be opened only with this
    # package.
    from keras.src.saving import object_registration  # pyright: ignore

# Private: all ways to save a whole model in an older HDF5 file come to one function of
# this module. That of Keras 2 is in "keras" or in "tf_keras".
older_files = importlib.import_module(
    "keras.src.legacy.saving.legacy_h5_format"
    if IS_KERAS_3
    else tf.keras.Model.__module__.split(".src.")[0] + ".src.saving.legacy.hdf5_format"
)

# Private in Keras 3: this attribute of an Embedding holds its variable, which has this
# name in files. The public `embeddings` is computed from it.
NAME_OF_EMBEDDINGS = "_embeddings" if IS_KERAS_3 else "embeddings"


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
    # The first variable is the counter; in Keras 3 the second one is the learning rate.
    num_others = 2 if IS_KERAS_3 else 1
    return any(
        len(group) > num_others and all(key.isdigit() for key in group)
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


_here = threading.local()


def has_default_ids() -> bool:
    """Returns whether a model is traced for the default signature of a SavedModel.

    Keras 3 does so for each model in what is saved, besides the signatures that the
    user gives. The ids of subclassed models are float32 there.
    """
    return getattr(_here, "traces_default", False)


def note_default_signatures() -> None:
    """Makes Keras 3 tell `has_default_ids` when it traces; Keras 2 knows the dtype."""
    if not IS_KERAS_3:
        return
    # Private: TensorFlow asks each model for this function when it saves, and nothing
    # public tells that it is traced.
    stock = tf.keras.Model._default_save_signature

    def _default_save_signature(model: Any) -> Any:
        made = stock.fget(model)
        if made is None:
            return None

        def serving_default(inputs):
            _here.traces_default = True
            try:
                return made.python_function(inputs)
            finally:
                _here.traces_default = False

        return tf.function(serving_default, input_signature=made.input_signature)

    tf.keras.Model._default_save_signature = property(_default_save_signature)


def track(owner: Any, name: str, trackable: Any) -> None:
    """Makes checkpoints find an object.

    `name`: the name under which they find it; it replaces another object of that name.
    """
    # Private: variables have no tracked attributes, and Keras also tracks attributes of
    # layers, of which it uses some names itself.
    owner._track_trackable(trackable, name, overwrite=True)


def forget(owner: Any, name: str) -> None:
    """Undoes a call of `track`."""
    # This name is private for the same reason as in `track`.
    owner._delete_tracking(name)


@contextlib.contextmanager
def without_variables(layer: Any, variables: Sequence[Any]) -> Iterator[None]:
    """Makes a layer not list some of its variables."""
    hidden = {id(variable) for variable in variables}
    # Private: the public properties are computed from these lists.
    kind = "variables" if IS_KERAS_3 else "weights"
    names = [f"_trainable_{kind}", f"_non_trainable_{kind}"]
    before = {name: vars(layer)[name] for name in names}
    # Keras would track assigned attributes.
    for name, listed in before.items():
        vars(layer)[name] = [x for x in listed if id(x) not in hidden]
    try:
        yield
    finally:
        vars(layer).update(before)


def untrack(layer: Any, name: str) -> None:
    """Makes checkpoints not find a variable under the name that a layer gave it.

    In Keras 3 they do not find it anyway.
    """
    if not IS_KERAS_3:
        # Private: `add_weight` of Keras 2 tracks the variable without an attribute, so
        # there is none to delete.
        layer._delete_tracking(name)
