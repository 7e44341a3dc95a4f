"""What objects `tf.train.Checkpoint` finds, and by which names.

Checked on TensorFlow 2.15.1 and 2.21.0, with both Kerases.
"""

import contextlib
from collections.abc import Iterator, Sequence
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


def forget(owner: Any, name: str) -> None:
    """Makes checkpoints not find an object that `track` has made them find.

    Args:
        owner: as `track` takes it.
        name: as `track` takes it.
    """
    # Private: as in `track`.
    owner._delete_tracking(name)


@contextlib.contextmanager
def without_variables(layer: Any, variables: Sequence[Any]) -> Iterator[None]:
    """While in it, a layer does not name some of its variables.

    Args:
        layer: the layer.
        variables: the variables, as Keras has them.
    """
    hidden = {id(variable) for variable in variables}
    # Private: the lists of which the public properties are made.
    kind = "variables" if IS_KERAS_3 else "weights"
    names = [f"_trainable_{kind}", f"_non_trainable_{kind}"]
    before = {name: vars(layer)[name] for name in names}
    # Not attributes by assignment, which Keras would track.
    for name, listed in before.items():
        vars(layer)[name] = [x for x in listed if id(x) not in hidden]
    try:
        yield
    finally:
        vars(layer).update(before)


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
