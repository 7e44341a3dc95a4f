"""The objects in a checkpoint of `tf.train.Checkpoint`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Private: no public function returns these objects with the names of their variables.
# Older checkpoints must be readable, so the format stays. Checked with TensorFlow 2.21
# (Keras 3.15, tf_keras).
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tf_syncrep.python.checkpoint.directory import value_of
from tf_syncrep.python.checkpoint.source import OBJECTS


def objects_in(reader: Any) -> Sequence[Any]:
    """Returns the objects: with `children`, by number, and `attributes`.

    Raises DamagedError, or protobuf's DecodeError: they cannot be read.
    """
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    return graph.FromString(value_of(reader, OBJECTS)).nodes


def numbers_of_slots(objects: Sequence[Any]) -> set[int]:
    """Returns the numbers of the optimizers' variables, slots and others."""
    found: set[int] = set()
    for node in objects:
        children = {x.local_name: x.node_id for x in node.children}
        if {"_iterations", "_variables"} <= {*children}:
            own = ("_iterations", "_learning_rate")
            found |= {children[x] for x in own if x in children}
            found |= {x.node_id for x in objects[children["_variables"]].children}
    return found
