"""The ways to save what a model has learned, and to load it into another one."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tf_syncrep as tfs

KINDS = ("weights", "checkpoint", "TensorFlow", "TensorFlow, with optimizer")


def save_and_load(
    kind: str, folder: Any
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Returns functions that save a model to a folder, and that load one from it."""
    path = f"{folder}/{kind}.weights.h5"
    if kind == "weights":
        return lambda x: x.save_weights(path), lambda x: x.load_weights(path)
    if kind == "checkpoint":
        return (
            lambda x: tfs.keras.Checkpoint(folder, model=x).save(wait=True),
            lambda x: tfs.keras.Checkpoint(folder, model=x).restore(),
        )

    def checkpoint_of(model: Any) -> tf.train.Checkpoint:
        optimizer = {"optimizer": model.optimizer} if "optimizer" in kind else {}
        return tf.train.Checkpoint(model=model, **optimizer)

    return (
        lambda x: checkpoint_of(x).write(path),
        lambda x: checkpoint_of(x).read(path).assert_existing_objects_matched(),
    )
