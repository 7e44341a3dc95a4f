"""Tables as they are published, which TensorFlow's own ops update."""

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.embedding.served_tables import (
    PublishedDenseTable,
    PublishedGrowingTable,
    PublishedTable,
)

WIDTH = 4


@pytest.mark.parametrize(
    "kind", [PublishedTable, PublishedGrowingTable, PublishedDenseTable]
)
def test_rows_that_are_none_may_come_without_a_width(kind):
    """A request by JSON says `[]` for a table that has not changed."""
    table = kind([WIDTH], tf.float32, 1)
    values = np.arange(3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)
    # As they are in the SavedModel, into which rows are copied.
    table.vectors.assign(values if kind is PublishedDenseTable else values[:, None])
    none = {name: tf.zeros([0], tf.int64) for name in table.specs(tf.float32)}
    before = table.vectors.numpy()

    @tf.function
    def apply(given):
        return table.apply(given)

    assert apply(none | {"vectors": tf.zeros([0])}) == 0
    np.testing.assert_array_equal(table.vectors, before)
