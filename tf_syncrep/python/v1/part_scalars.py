"""Scalars of parts of variables, which restore into any number of parts.

A slot with the shape of its variable is saved by rows, as the variable is, so that
TensorFlow restores it into other parts. A scalar of each part has the part's name:
`table/part_0/AdamAsync_2`. If a checkpoint was written from other parts, each part
gets the smallest value of all parts, which of a power of beta is that of the part with
the most steps. What is saved is what TensorFlow saves, so old checkpoints restore, and
those of DeepRec.

A Saver reads what its ops name, so `restore` feeds the names. Checked with TensorFlow
2.15.1 and 2.21.0, whose Saver documents neither the type of these ops nor their inputs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tf_syncrep.python.v1.variable_rows import part_of

# The collection of a graph's scalars. It is not a string, since collections with
# strings as keys are exported with the graph.
_COLLECTION: Any = ("tf_syncrep", "PartScalar")


@dataclasses.dataclass(frozen=True)
class PartScalar:
    """A scalar slot of a variable, which may be a part of a partitioned one."""

    variable: Any
    before: str
    after: str
    is_part: bool

    @property
    def names(self) -> list[str]:
        """The name under which it is saved."""
        return [self.variable.op.name]

    def stored_names(self, stored: Collection[str]) -> list[str]:
        """Returns the names in a checkpoint whose smallest value it gets.

        Returns its own name if the checkpoint has as many parts as the graph.
        """
        whole = self.before + self.after
        found = [whole] if whole in stored else []
        number = 0
        while (name := f"{self.before}/part_{number}{self.after}") in stored:
            found.append(name)
            number += 1
        if self.is_part and len(found) != self._num_parts():
            return found
        return self.names if self.names[0] in stored else found

    def _num_parts(self) -> int:
        key = (self.before, self.after)
        scalars = scalars_of_graph(self.variable.graph)
        return sum((x.before, x.after) == key for x in scalars)


def scalars_of_graph(graph: tf.Graph) -> list[PartScalar]:
    """Returns the scalar slots of a graph."""
    return graph.get_collection(_COLLECTION)


def add_scalar(variable: Any, slot: Any) -> None:
    """Has a scalar slot of a variable restored into any number of parts."""
    part = part_of(variable)
    name = variable.op.name if part is None else part.full_name
    scope, _, suffix = slot.op.name.rpartition(variable.op.name + "/")
    scalar = PartScalar(slot, scope + name, "/" + suffix, part is not None)
    if all(x.variable is not slot for x in scalars_of_graph(slot.graph)):
        slot.graph.add_to_collection(_COLLECTION, scalar)
    _feed_names()


@functools.cache
def _feed_names() -> None:
    """Has Savers restore from the names that a checkpoint has."""
    restore = tf.compat.v1.train.Saver.restore

    @functools.wraps(restore)
    def restore_scalars(self, sess, save_path):
        scalars = [] if sess is None else scalars_of_graph(sess.graph)
        if scalars:
            sess = _FeedingSession(sess, self.saver_def, save_path, scalars)
        restore(self, sess, save_path)

    tf.compat.v1.train.Saver.restore = restore_scalars


class _FeedingSession:
    """A session for `Saver.restore`, which runs the ops with other names."""

    def __init__(self, session, saver_def, save_path, scalars):
        self._session = session
        self._filename = saver_def.filename_tensor_name
        self._save_path = save_path
        self._scalars = {x.names[0]: x for x in scalars}

    def run(self, fetches, feed_dict):
        return self._session.run(fetches, {**feed_dict, **self._names_to_feed()})

    def __getattr__(self, name):
        return getattr(self._session, name)

    def _names_to_feed(self) -> dict[tf.Tensor, list[str]]:
        """Returns the names for each op that would read others."""
        reader = tf.compat.v1.train.NewCheckpointReader(
            tf.compat.as_text(self._save_path)
        )
        stored = reader.get_variable_to_shape_map()

        def name_for(name):
            scalar = self._scalars.get(name)
            names = scalar.stored_names(stored) if scalar else []
            return min(names, key=reader.get_tensor, default=name)

        feed = {}
        for op in self._session.graph.get_tensor_by_name(self._filename).consumers():
            if op.type == "RestoreV2":
                tensor = op.inputs[1]
                # After `tf.get_static_value` it could not be fed.
                saved = tf.make_ndarray(tensor.op.get_attr("value"))
                names = [name.decode() for name in saved]
                if (fitting := list(map(name_for, names))) != names:
                    feed[tensor] = fitting
        return feed
