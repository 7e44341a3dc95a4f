"""Which objects `tf.train.Checkpoint` finds, and under which names.

Checked on TensorFlow 2.15.1 and 2.22.0rc0, with both Kerases.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

# Private in Keras 3: this attribute of an Embedding holds its variable, which has this
# name in files. The public `embeddings` is computed from it.
NAME_OF_EMBEDDINGS = "_embeddings" if IS_KERAS_3 else "embeddings"


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
