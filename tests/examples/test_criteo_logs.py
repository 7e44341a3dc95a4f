"""Logs in Criteo's format: parsing, sharing among workers, the planted model."""

import collections
import pathlib

import criteo_logs
import metrics
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
    assert abs(criteo_logs.estimate_lines(paths) - sizes[0]) < 300


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


def expected_auc(odds):
    """The AUC that the odds have over all labels that might have been drawn."""
    p = criteo_logs.probability(np.sort(odds))
    clicks_above = np.cumsum(p[::-1])[::-1] - p
    return np.sum((1 - p) * clicks_above) / (p.sum() * (1 - p).sum())


def test_the_best_auc_is_that_of_the_odds_and_nothing_else_has_more(tmp_path):
    """A million lines would take twenty seconds, and these one."""
    lines = 2 * criteo_logs.LINES_AT_ONCE // 3
    _, best = criteo_logs.write_planted(tmp_path, lines, seed=3)
    random = np.random.default_rng(3)
    model = criteo_logs.Planted(random)
    texts, labels, odds = model.draw(lines, random)
    held_out = criteo_logs.is_held_out(tf.constant(texts)).numpy()
    assert best == metrics.auc(labels[held_out], odds[held_out])
    # This holds by construction; the spread of an AUC of 4,000 lines is about 0.006.
    assert abs(best - expected_auc(odds)) < 0.02
    np.testing.assert_allclose(metrics.auc(labels, odds), expected_auc(odds), atol=5e-3)
    # The further the scores are off, the worse the AUC.
    noise = np.random.default_rng(4).normal(size=lines)
    aucs = [metrics.auc(labels, odds + size * noise) for size in (0, 0.5, 1, 2)]
    assert aucs == sorted(aucs, reverse=True)


def test_logs_of_any_number_of_lines_are_in_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(criteo_logs, "LINES_AT_ONCE", 60)
    paths, best = criteo_logs.write_planted(tmp_path, 150, files=4)
    counts = [pathlib.Path(x).read_text().count("\n") for x in paths]
    assert counts == [38, 38, 37, 37]
    assert 0 < best < 1
