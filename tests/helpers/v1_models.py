"""Small models for tests of v1 optimizers, on each kind of variable."""

import re
from collections.abc import Callable
from typing import Any

import devices
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

# The arguments of `get_variable` for each kind. Nine rows have three parts, unless a
# model says otherwise.
KINDS = {
    "ref": {"use_resource": False},
    "resource": {"use_resource": True},
    "partitioned_ref": {
        "use_resource": False,
        "partitioner": tf1.fixed_size_partitioner(3),
    },
    "partitioned_resource": {
        "use_resource": True,
        "partitioner": tf1.fixed_size_partitioner(3),
    },
}

TABLE = np.linspace(-2.0, 2.0, 36).reshape(9, 4)
VECTOR = np.array([0.5, -1.5, 2.5])


def part_slices(kind: str) -> list[slice]:
    return [slice(0, 3), slice(3, 6), slice(6, 9)] if "part" in kind else [slice(0, 9)]


class Model:
    """A table with lookups and a vector that is used as a whole, with one loss.

    The gradient of row `rows[i]` of the table is `row_grads[i]`, and that of the
    vector `vector_grad`: all three are placeholders.
    """

    def __init__(self, kind: str, dtype: tf.DType = tf.float32, parts: int = 3):
        """Builds the model in the current graph; `kind` is one of KINDS."""
        options: dict[str, Any] = dict(KINDS[kind])
        if "partitioner" in options:
            options["partitioner"] = tf1.fixed_size_partitioner(parts)
        with devices.scope():
            table = tf1.get_variable(
                "table",
                TABLE.shape,
                dtype,
                initializer=initializer_of(TABLE),
                **options,
            )
            self.vector = tf1.get_variable(
                "vector",
                initializer=tf.constant(VECTOR, dtype),
                use_resource=KINDS[kind]["use_resource"],
            )
        self.table_parts = list(table) if "part" in kind else [table]
        self.rows = tf1.placeholder(tf.int64, [None], name="rows")
        self.row_grads = tf1.placeholder(dtype, [None, 4], name="row_grads")
        self.vector_grad = tf1.placeholder(dtype, [3], name="vector_grad")
        found = tf1.nn.embedding_lookup(table, self.rows, partition_strategy="div")
        self.loss = tf.reduce_sum(found * self.row_grads) + tf.reduce_sum(
            self.vector * self.vector_grad
        )

    @property
    def variables(self) -> list[Any]:
        return [*self.table_parts, self.vector]

    def feed(self, step: int) -> dict[Any, Any]:
        """The gradients of one step; every third leaves the first three rows alone."""
        fed = (self.rows, self.row_grads, self.vector_grad)
        return dict(zip(fed, gradients(step), strict=True))


def gradients(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, their gradients, and the vector's gradient of one step."""
    random = np.random.default_rng(step)
    first_row = 3 if step % 3 == 1 else 0
    rows = np.concatenate([random.integers(first_row, 9, 6), [8, 8, first_row]])
    row_grads = random.choice([0.5, 1.0, 1.5], [9, 4])
    return rows, row_grads, random.uniform(0.5, 1.0, 3)


def whole(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Puts parts together: rows one after the other, and of scalars the least."""
    found: dict[str, list[np.ndarray]] = {}
    for name in sorted(values):
        found.setdefault(re.sub(r"/part_\d+", "", name), []).append(values[name])
    return {
        name: np.concatenate(parts) if parts[0].shape else np.min(parts)
        for name, parts in found.items()
    }


def initializer_of(value: np.ndarray) -> Callable[..., tf.Tensor]:
    """Returns an initializer: the value, or the rows of it that a part has."""

    def initialize(shape, dtype=None, partition_info=None):
        first = 0 if partition_info is None else partition_info.var_offset[0]
        return tf.constant(value[first : first + shape[0]], dtype)

    return initialize
