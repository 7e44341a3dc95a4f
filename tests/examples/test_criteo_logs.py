"""Logs in Criteo's format: parsing, sharing among workers, the planted model."""

import collections

import criteo_logs
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs


def line(label=1, numbers=("3",) * 13, categories=("68fd1e64",) * 26):
    return "\t".join([str(label), *numbers, *categories])


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return criteo_logs.write_planted(tmp_path_factory.mktemp("logs"), 5000, files=3)


def numbers_seen(dataset):
    """How often each example came, recognised by its numbers and categories."""
    counter = collections.Counter()
    for (numbers, categories), _ in dataset:
        both = np.concatenate([numbers, categories], axis=1)
        counter.update(row.tobytes() for row in both)
    return counter


def test_missing_fields_are_zero_and_a_category_of_their_own():
    lines = [line(), line(0, ("",) * 13, ("",) * 26), line(0, ("-2",) * 13)]
    (numbers, categories), labels = criteo_logs.parse(tf.constant(lines), 1000)
    np.testing.assert_array_equal(labels, [[1], [0], [0]])
    expected = np.repeat([[np.log(4)], [0], [0]], 13, axis=1)
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)
    assert categories.shape == (3, 26)
    assert np.all((categories >= 0) & (categories < 1000))
    np.testing.assert_array_equal(categories[0], categories[2])
    assert np.all(categories[0].numpy() != categories[1].numpy())
    # The same string in 26 columns.
    assert len(set(categories[0].numpy())) > 20


@pytest.mark.parametrize("bad", [line()[:-9], line("x"), line() + "\tmore"])
def test_a_line_that_is_not_of_the_format_is_an_error(bad):
    with pytest.raises(tf.errors.InvalidArgumentError):
        criteo_logs.parse(tf.constant([bad]), 1000)


def test_each_line_is_either_held_out_or_trained_on(planted):
    paths, _ = planted
    sizes = [
        sum(len(y) for _, y in criteo_logs.batches(paths, 64, 1000, held_out=held_out))
        for held_out in (False, True)
    ]
    assert sum(sizes) == 5000
    assert 300 < sizes[1] < 700


def test_readers_share_the_lines_of_each_epoch(planted):
    paths, _ = planted
    in_order = criteo_logs.batches(paths, 1, 2**31 - 1)
    queue = tfs.data.WorkQueue(paths, num_epochs=2)
    shared = criteo_logs.batches_of_queue(queue, 1, 2**31 - 1)
    once = numbers_seen(in_order)
    assert numbers_seen(shared) == once + once


def test_planted_clicks_follow_the_planted_model(planted):
    paths, best = planted
    (_, labels) = next(iter(criteo_logs.batches(paths, 5000, 10)))
    assert 0.2 < labels.numpy().mean() < 0.5
    assert 0.8 < best < 0.95
