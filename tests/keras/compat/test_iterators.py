"""Iterators are ended by an op, so that whoever drops them does not wait."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.keras.compat.iterators import EndableDataset, end_iterators

SECS = 30.0


@pytest.fixture
def shut():
    """A gate on the way of what is read ahead; opened in the end."""
    gate = threading.Event()
    yield gate
    gate.set()


def behind(gate):
    """The number 0, and others when the gate is open, which are read ahead."""

    def wait(i):
        assert i == 0 or gate.wait(SECS)
        return i

    return tf.data.Dataset.range(9).map(
        lambda i: tf.numpy_function(wait, [i], tf.int64, stateful=True)
    )


def wait_for_ends():
    for thread in threading.enumerate():
        if thread.name == "tf_syncrep_end":
            thread.join(SECS)
            assert not thread.is_alive()


def test_what_reads_ahead_and_cannot_end_is_not_waited_for(shut):
    dataset = EndableDataset(behind(shut).prefetch(1))
    iterator = iter(dataset)
    assert int(next(iterator)) == 0
    begin = time.monotonic()
    end_iterators([dataset])
    del iterator, dataset
    assert time.monotonic() - begin < SECS / 2
    assert not shut.is_set()
    shut.set()
    wait_for_ends()


def test_an_iterator_that_comes_while_others_end_has_all_elements(shut):
    dataset = EndableDataset(behind(shut).prefetch(1))
    next(iter(dataset))
    end_iterators([dataset])
    later = iter(dataset)
    shut.set()
    wait_for_ends()
    assert [int(x) for x in later] == list(range(9))


@pytest.mark.parametrize(
    "element",
    [
        np.ones([2, 3], np.float32),
        "text",
        {"a": (1, 2.0), "b": tf.sparse.eye(3)},
        tf.ragged.constant([[1], [2, 3]]),
        tf.data.Dataset.range(3),
        tf.experimental.Optional.from_value(1),
    ],
    ids=["array", "string", "sparse", "ragged", "dataset", "optional"],
)
def test_ended_iterators_have_no_more_elements(element):
    dataset = EndableDataset(tf.data.Dataset.from_tensors(element).repeat())
    first, second = iter(dataset), iter(dataset)
    next(first)
    end_iterators([dataset])
    assert list(first) == list(second) == []
    next(iter(dataset))
