"""A worker's data in chunks: all of it, in order, epoch after epoch."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.keras.fit.worker_datasets import (
    ITERATOR_SPEC,
    batch_of,
    in_chunks,
    take_chunk,
)


def chunks_of(make, size, num_skipped=0):
    """Reads chunks as a worker does; yields lists of batches, empty ones at ends."""
    specs = []

    @tf.function
    def made(num_skipped):
        dataset = make()
        specs.append(dataset.element_spec)
        return in_chunks(dataset, size, num_skipped)

    take = tf.function(take_chunk).get_concrete_function(ITERATOR_SPEC)
    iterator = iter(made(tf.constant(num_skipped, tf.int64)))
    while True:
        chunk, number = take(iterator)
        yield [batch_of(chunk, i, specs[0]) for i in range(int(number))]


def epochs_of(chunks, number):
    """The numbers that some epochs have."""
    return [
        [int(x) for x in itertools.chain(*iter(lambda: next(chunks), []))]
        for _ in range(number)
    ]


@pytest.mark.parametrize(
    ("num", "size", "sizes"),
    [(5, 2, [2, 2, 1, 0] * 2), (4, 4, [4, 0] * 2), (3, 1, [1] * 3 + [0]), (0, 2, [0])],
)
def test_last_chunk_has_what_is_left_and_an_end_is_behind_it(num, size, sizes):
    chunks = chunks_of(lambda: tf.data.Dataset.range(num), size)
    assert [len(next(chunks)) for _ in sizes] == sizes


def test_nothing_is_read_before_its_chunk_is_asked_for():
    read = []

    def note(x):
        read.append(int(x))
        return x

    data = tf.data.Dataset.range(6).map(lambda x: tf.py_function(note, [x], tf.int64))
    chunks = chunks_of(lambda: data, size=2)
    counts = []
    for _ in range(5):
        next(chunks)
        counts.append(len(read))
    assert counts == [2, 4, 6, 6, 8]


def test_nothing_is_read_of_an_epoch_that_is_skipped():
    """A batch that is read comes from a work queue, or a job that workers share."""
    read = tf.Variable(0)

    def make():
        return tf.data.Dataset.range(6).map(lambda x: (read.assign_add(1), x)[1])

    chunks = chunks_of(make, 2, num_skipped=3)
    assert len(next(chunks)) == 2
    assert read.numpy() == 2


@pytest.mark.parametrize("seed", [None, 3])
def test_each_epoch_has_the_order_that_it_has_in_one_process(seed):
    tf.random.set_seed(7)

    def make():
        return tf.data.Dataset.range(20).shuffle(20, seed=seed)

    expected = epochs_of(chunks_of(make, 3), 4)
    assert len({*map(tuple, expected)}) == 4
    assert all(sorted(epoch) == [*range(20)] for epoch in expected)
    # A worker that comes back in the third epoch, and a training that goes on there.
    assert epochs_of(chunks_of(make, 3, num_skipped=2), 2) == expected[2:]
    repeated = iter(tf.function(lambda: make().repeat(4))())
    np.testing.assert_array_equal(np.ravel(expected), [int(x) for x in repeated])


def test_what_is_cached_is_computed_in_one_epoch():
    calls = []

    def cost(x):
        calls.append(x)
        return x

    data = tf.data.Dataset.range(9).map(lambda x: tf.py_function(cost, [x], tf.int64))
    assert len(epochs_of(chunks_of(data.cache, 2), 3)) == 3
    assert len(calls) == 9


def test_batches_have_any_structure():
    ragged = tf.ragged.constant([[1], [2, 3]])
    sparse = tf.sparse.from_dense([[0.0, 2.0], [1.0, 0.0]])
    data = tf.data.Dataset.from_tensors(({"r": ragged, "s": sparse}, b"text"))
    ((features, text),) = next(chunks_of(lambda: data, 1))
    assert features["r"].to_list() == ragged.to_list()
    np.testing.assert_array_equal(
        tf.sparse.to_dense(features["s"]), tf.sparse.to_dense(sparse)
    )
    assert text.numpy() == b"text"
