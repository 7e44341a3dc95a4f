"""Scores compared with known answers, and with slow twins."""

import math

import metrics
import numpy as np
import pytest


def test_auc_is_the_share_of_pairs_in_order():
    random = np.random.default_rng(0)
    labels = random.random(300) < 0.3
    scores = random.integers(0, 20, 300) + 5 * labels
    differences = scores[labels][:, np.newaxis] - scores[~labels]
    expected = np.mean((differences > 0) + 0.5 * (differences == 0))
    assert metrics.auc(labels, scores) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(metrics.auc(np.ones(3), np.arange(3)))


def test_rmse_is_the_root_of_the_mean_squared_error():
    assert metrics.rmse([1, 2, 5], [1, 4, 4]) == pytest.approx(math.sqrt(5 / 3))
    # In float32 the sums of these squares would lose their last digits.
    labels, predictions = np.full(10**6, 1000.1, np.float32), np.full(10**6, 1000)
    wanted = float(np.float32(1000.1)) - 1000
    assert metrics.rmse(labels, predictions) == pytest.approx(wanted, rel=1e-9)


def test_hit_rate_and_ndcg_of_places_that_are_known():
    # The first candidate is first, third, and last of four.
    scores = [[9, 1, 2, 3], [5, 9, 1, 8], [0, 1, 2, 3]]
    assert metrics.places(scores).tolist() == [0, 2, 3]
    assert metrics.hit_rate(scores, 1) == pytest.approx(1 / 3)
    assert metrics.hit_rate(scores, 3) == pytest.approx(2 / 3)
    assert metrics.ndcg(scores, 1) == pytest.approx(1 / 3)
    assert metrics.ndcg(scores, 3) == pytest.approx((1 + 1 / 2) / 3)
    assert metrics.ndcg(scores, 4) == pytest.approx((1 + 1 / 2 + 1 / math.log2(5)) / 3)


def test_a_model_that_gives_all_the_same_score_finds_nothing():
    scores = np.zeros([5, 100])
    assert metrics.places(scores).tolist() == [99] * 5
    assert metrics.hit_rate(scores) == metrics.ndcg(scores) == 0


def test_hit_rate_and_ndcg_are_those_of_sorted_lists():
    random = np.random.default_rng(3)
    scores = random.integers(0, 50, [200, 100]) + 10 * (np.arange(100) == 0)
    hits = gains = 0.0
    for row in scores:
        # Among equals the worst order counts: the right one comes after its equals.
        order = sorted(range(100), key=lambda i: (-row[i], i == 0))
        for place, candidate in enumerate(order[:10]):
            if candidate == 0:
                hits += 1
                gains += 1 / math.log2(place + 2)
    assert metrics.hit_rate(scores) == pytest.approx(hits / 200)
    assert metrics.ndcg(scores) == pytest.approx(gains / 200)
    assert 0.2 < hits / 200 < 0.9
