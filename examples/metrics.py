"""How good predictions are: RMSE, AUC, and the place of one item among others."""

from __future__ import annotations

import numpy as np


def rmse(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the root of the mean squared error."""
    errors = np.asarray(labels, np.float64) - np.asarray(predictions, np.float64)
    return float(np.sqrt(np.mean(errors**2)))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the area under the ROC curve: how often a click scores above a non-click.

    Labels are true or 1 for clicks. Equal scores count one half.
    """
    labels = np.asarray(labels, bool)
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    clicks, others = labels.sum(), (~labels).sum()
    if not clicks or not others:
        return float("nan")
    return float((ranks[labels].sum() - clicks * (clicks + 1) / 2) / (clicks * others))


def places(scores: np.ndarray) -> np.ndarray:
    """Returns the places, from 0, of the first candidate of each list: int64 `[lists]`.

    Scores are `[lists, candidates]`. If all scores of a list are the same, the place is
    the last one, so that a model that knows nothing does not seem perfect.
    """
    scores = np.asarray(scores)
    return np.sum(scores[:, 1:] >= scores[:, :1], axis=1)


def hit_rate(scores: np.ndarray, count: int = 10) -> float:
    """HR@count: in how many lists the first candidate is among the best `count`."""
    return float(np.mean(places(scores) < count))


def ndcg(scores: np.ndarray, count: int = 10) -> float:
    """NDCG@count if one candidate is right: the mean of `1 / log2(place + 2)`.

    Lists whose first candidate is not among the best `count` add nothing.
    """
    found = places(scores)
    return float(np.mean(np.where(found < count, 1 / np.log2(found + 2), 0.0)))
