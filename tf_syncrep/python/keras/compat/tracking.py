"""What objects `tf.train.Checkpoint` finds, and by which names.

Checked on TensorFlow 2.15.1 and 2.21.0, with both Kerases.
"""

from typing import Any

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

# Private in Keras 3: the attribute of an Embedding that holds its variable, which files
# name it by. The public `embeddings` is computed from it.
NAME_OF_EMBEDDINGS = "_embeddings" if IS_KERAS_3 else "embeddings"


def track(owner: Any, name: str, trackable: Any) -> None:
    """Makes checkpoints find an object.

    Args:
        owner: a variable or layer.
        name: under which they find it there; another one of that name is forgotten.
        trackable: the object.
    """
    # Private: variables have no tracked attributes, and an attribute of a layer is
    # tracked by Keras too, which uses some names itself.
    owner._track_trackable(trackable, name, overwrite=True)


def untrack(layer: Any, name: str) -> None:
    """Makes checkpoints not find a variable by the name that a layer has made it by.

    Those of Keras 3 do not anyway.

    Args:
        layer: the layer.
        name: as `add_weight` was given it.
    """
    if not IS_KERAS_3:
        # Private: what `add_weight` of Keras 2 has tracked is not an attribute that
        # could be deleted.
        layer._delete_tracking(name)
