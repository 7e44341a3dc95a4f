"""Tables that TensorFlow's own ops look up in, in any process that has loaded a model.

A `ServedTable` is a copy of a table that grows. Published tables are updated while they
serve: row `r` of part `p` of the table that is trained is at `[r, p]`, and the number
of this place is `r * num_parts + p`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_syncrep.python.embedding.lookup import (
    Feature,
    checked_ids,
    combine_with_stock_ops,
)

# A table that grows has room for one in so many rows more than it needs.
SHARE_OF_ROOM = 16


class _KeyedTable(tf.Module):
    """A table that finds rows by keys; a key without a row has a vector of zeros."""

    def look_up(self, feature: Feature) -> tf.Tensor:
        """Returns the vectors of a feature of the table."""
        ids = tf.reshape(tf.cast(feature.ids, tf.int64), [-1])
        is_found, found, width = self._find(ids)
        vectors = tf.where(is_found[:, tf.newaxis], found, tf.zeros_like(found))
        shape = tf.concat([tf.shape(feature.ids), [width]], axis=0)
        vectors = tf.reshape(vectors, shape)
        static = feature.ids.shape.concatenate(width)
        return combine_with_stock_ops(feature, tf.ensure_shape(vectors, static))

    def _find(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, int]:
        """Returns which keys have a row, vectors for all, and their width."""
        raise NotImplementedError


class ServedTable(_KeyedTable):
    """A table as it is now."""

    def __init__(self, keys: np.ndarray, vectors: np.ndarray):
        """Copies a table.

        `keys`: int64 of shape `[n]`, ascending. `vectors`: of shape `[n, width]`.
        """
        super().__init__()
        if not len(keys):  # Any key stands for none.
            keys = np.zeros([1], np.int64)
            vectors = np.zeros([1, vectors.shape[1]], vectors.dtype)
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self.keys, self.vectors = (
                tf.Variable(tf.constant(x), trainable=False) for x in (keys, vectors)
            )

    def _find(self, keys):
        own = tf.convert_to_tensor(self.keys)
        places = tf.minimum(tf.searchsorted(own, keys), tf.size(own) - 1)
        is_found = tf.equal(tf.gather(own, places), keys)
        return is_found, tf.gather(self.vectors, places), self.vectors.shape[1]


class PublishedTable(tf.Module):
    """A table of a fixed size, or any variable of which rows are published.

    `arrays`: the names of the tensors that `apply` takes beside `places`, with the
    variables that have them. `vectors`: float16 ones are int16 of the same bits, since
    TensorFlow does not restore a float16 tensor of which files have parts.
    """

    def __init__(self, row_shape: Sequence[int], dtype: tf.DType, num_parts: int):
        """Makes a table without rows; a saved model gets them from its files."""
        super().__init__()
        self.num_parts = num_parts
        self.row_shape = tuple(row_shape)
        self.dtype = dtype
        stored = tf.int16 if dtype == tf.half else dtype
        self.vectors = self._array(self.row_shape, stored)

    @property
    def arrays(self) -> dict[str, tf.Variable]:
        """The variables with rows, by the names of the arguments of `apply`."""
        return {"vectors": self.vectors}

    @property
    def resources(self) -> list[tf.Tensor]:
        """The handles of what lookups read."""
        return [variable.handle for variable in self.arrays.values()]

    def _array(self, row_shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
        shape = [self.num_parts, *row_shape]
        with tf.init_scope(), tf.device("/device:CPU:0"):
            return tf.Variable(
                tf.zeros([0, *shape], dtype), shape=[None, *shape], trainable=False
            )

    def look_up(self, feature: Feature) -> tf.Tensor:
        """Returns the vectors of a feature of the table; refuses other ids."""
        vectors = self._gather(checked_ids(feature))
        return combine_with_stock_ops(feature, vectors)

    def stored(self, vectors: tf.Tensor) -> tf.Tensor:
        """Returns vectors as the variable has them."""
        return tf.bitcast(tf.cast(vectors, self.dtype), self.vectors.dtype)

    def _gather(self, places: tf.Tensor) -> tf.Tensor:
        found = tf.gather_nd(self.vectors, self._at(places))
        return tf.bitcast(found, self.dtype)

    def specs(self, trained: tf.DType) -> dict[str, tf.TensorSpec]:
        """Returns what `apply` takes; vectors come as they are trained."""
        return {
            "places": tf.TensorSpec([None], tf.int64),
            "vectors": tf.TensorSpec([None, *self.row_shape], trained),
        }

    def apply(self, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Sets rows; returns how many, when they are set."""
        places = given["places"]
        written = self._write(places, {"vectors": self._rows_of(given)})
        with tf.control_dependencies(written):
            return tf.size(places, tf.int64)

    def _rows_of(self, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the vectors that are given; if there are none, JSON has no width."""
        shape = [tf.size(given["places"]), *self.row_shape]
        return self.stored(tf.reshape(given["vectors"], shape))

    def _write(self, places: tf.Tensor, rows: Mapping[str, tf.Tensor]) -> list[Any]:
        """Returns the ops that set rows."""
        return [
            tf.raw_ops.ResourceScatterNdUpdate(
                ref=self.arrays[name].handle,
                indices=self._at(places),
                updates=values,
            )
            for name, values in rows.items()
        ]

    def _at(self, places: tf.Tensor) -> tf.Tensor:
        rows = tf.math.floordiv(places, self.num_parts)
        return tf.stack([rows, places - rows * self.num_parts], axis=-1)


class PublishedDenseTable(PublishedTable):
    """A variable that is read as a whole, though only its changed rows are published.

    It is not written in place, for a request may be reading it. Row `r` is at `[r]`.
    """

    def _array(self, row_shape, dtype):
        with tf.init_scope(), tf.device("/device:CPU:0"):
            return tf.Variable(
                tf.zeros([0, *row_shape], dtype),
                shape=[None, *row_shape],
                trainable=False,
            )

    def apply(self, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Sets rows; returns how many, when they are set."""
        places = given["places"]

        def changed() -> tf.Tensor:
            updates = self._rows_of(given)
            self.vectors.assign(
                tf.tensor_scatter_nd_update(self.vectors, places[:, None], updates)
            )
            return tf.size(places, tf.int64)

        zero = tf.constant(0, tf.int64)
        return tf.cond(tf.size(places) > 0, changed, lambda: zero)


class _Index(tf.lookup.experimental.MutableHashTable):
    """An index that is gone with the model that was loaded with it."""

    def _destroy_resource(self):
        tf.raw_ops.DestroyResourceOp(
            resource=self.resource_handle, ignore_lookup_error=True
        )


class PublishedGrowingTable(PublishedTable, _KeyedTable):
    """A table that finds rows by keys."""

    def __init__(self, row_shape: Sequence[int], dtype: tf.DType, num_parts: int):
        """Makes a table without rows; a saved model gets them from its files."""
        super().__init__(row_shape, dtype, num_parts)
        self.keys = self._array((), tf.int64)
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self.index = _Index(tf.int64, tf.int64, -1)

    @property
    def arrays(self) -> dict[str, tf.Variable]:
        """The variables with rows, by the names of the arguments of `apply`."""
        return {"vectors": self.vectors, "keys": self.keys}

    @property
    def resources(self) -> list[tf.Tensor]:
        """The handles of what lookups read."""
        return [*super().resources, self.index.resource_handle]

    def look_up(self, feature: Feature) -> tf.Tensor:
        """Returns the vectors of a feature of the table."""
        return _KeyedTable.look_up(self, feature)

    def _find(self, keys):
        places = self._places_of(keys)
        # A table has one row at least, so that there is a place for keys without one.
        found = self._gather(tf.maximum(places, 0))
        return places >= 0, found, self.row_shape[0]

    def specs(self, trained: tf.DType) -> dict[str, tf.TensorSpec]:
        """Returns what `apply` takes; vectors come as they are trained."""
        one_each = tf.TensorSpec([None], tf.int64)
        return {**super().specs(trained), "keys": one_each, "tombstones": one_each}

    def apply(self, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Sets rows and their keys, and removes the keys of places in `tombstones`."""
        places, keys, tombstones = (given[x] for x in ("places", "keys", "tombstones"))
        self._make_room(tf.concat([[tf.constant(-1, tf.int64)], places, tombstones], 0))
        is_new = tf.not_equal(self._places_of(keys), places)
        new_places = tf.boolean_mask(places, is_new)
        changed = tf.concat([new_places, tombstones], 0)
        had = tf.gather_nd(self.keys, self._at(changed))
        # Before a place has a key, another one's may stand there.
        is_there = tf.equal(self._places_of(had), changed)
        removed = self.index.remove(tf.boolean_mask(had, is_there))
        inserted = self.index.insert(tf.boolean_mask(keys, is_new), new_places)
        written = self._write(places, {"vectors": self._rows_of(given), "keys": keys})
        with tf.control_dependencies([removed, inserted, *written]):
            return tf.size(places, tf.int64) + tf.size(tombstones, tf.int64)

    def _places_of(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(self.index.lookup(keys), [None])

    def _make_room(self, places: tf.Tensor) -> None:
        needed = tf.reduce_max(places) // self.num_parts + 1
        for variable in self.arrays.values():
            rows = variable_rows(variable)

            def longer(variable=variable, rows=rows) -> Any:
                # Until there is something in a new row, it is a copy of the last one.
                # This reads the variable by rows: its value would be one copy more.
                new = tf.range(needed + needed // SHARE_OF_ROOM)
                variable.assign(tf.gather(variable, tf.minimum(new, rows - 1)))
                return tf.constant(True)

            tf.cond(needed > rows, longer, lambda: tf.constant(False))


def refuse_other_base(version: tf.Variable, base: tf.Tensor) -> Any:
    """Returns an op that fails if a model is not of the publication `base`."""
    own = version.read_value()
    return tf.raw_ops.Assert(
        condition=tf.equal(own, base),
        data=[
            "`base` must be the publication that this model is of. Received:",
            base,
            "where the model is of",
            own,
        ],
    )


def variable_rows(variable: tf.Variable) -> tf.Tensor:
    """Returns how many rows a variable has now, without reading it."""
    return tf.raw_ops.VariableShape(input=variable.handle, out_type=tf.int64)[0]
