"""What is to be learned from MovieLens, and how well it was: three tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import metrics
import movielens_batches
import movielens_files
import movielens_models
import numpy as np
import tensorflow as tf
from movielens_models import ANY, Settings


@dataclasses.dataclass(frozen=True)
class Task:
    """A model, what it is trained on, and how it is tested."""

    examples: movielens_batches.Examples
    # Makes the model's inputs of columns, `[batch]` each.
    features: Callable[[Mapping[str, Any]], dict[str, Any]]
    make_model: Callable[[], tf.keras.Model]
    loss: Any
    tested: Any  # columns of what to predict
    # Scores, by name, of the predictions `[tested]`; the first one counts.
    score: Callable[[np.ndarray], dict[str, float]]
    baseline: dict[str, float]  # the scores of a prediction that needs no model
    baseline_name: str


# Of these parts one is tested on, where ratings are predicted.
FOLDS = 5


def leave_one_out(users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Returns where each user's last rating is: bool `[ratings]`.

    Of ratings of the same second the last one in the file counts. (Two of five users of
    MovieLens-100K have several in their last second.)
    """
    order = np.lexsort([np.arange(len(users)), times, users])
    is_last = np.append(users[order][1:] != users[order][:-1], True)
    chosen = np.zeros(len(users), bool)
    chosen[order[is_last]] = True
    return chosen


def fold(ratings: int, number: int) -> np.ndarray:
    """One of `FOLDS` random parts of the ratings: bool `[ratings]`.

    The parts are the same for everybody, have no rating in common, and together all.
    Of a larger number the remainder counts.
    """
    order = np.random.default_rng(0).permutation(ratings)
    chosen = np.zeros(ratings, bool)
    chosen[order[number % FOLDS :: FOLDS]] = True
    return chosen


def lists_to_rank(
    data: movielens_files.MovieLens, tested: np.ndarray, others: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lists of items for users, each the right one and others to tell it from.

    The others are items that the user has not rated; it is an error if there are fewer.

    Returns users `[lists]` and items `[lists, 1 + others]`, int32.
    """
    random = np.random.default_rng(seed)
    users, right = data.users[tested], data.items[tested]
    is_rated = np.zeros([data.num_users, data.num_items], bool)
    is_rated[data.users, data.items] = True
    lists = [
        np.append(item, random.choice(np.flatnonzero(~rated), others, replace=False))
        for item, rated in zip(right, is_rated[users], strict=True)
    ]
    return users, np.array(lists, np.int32)


def ranking(data: movielens_files.MovieLens, settings: Settings) -> Task:
    """NeuMF: which film a user takes, among it and 99 that the user never rated.

    The protocol of He et al., "Neural Collaborative Filtering" (2017): each user's last
    film is left out, and four negatives come with each that is not. If any film is left
    out instead, the model knows what the user took later, and scores are higher.
    """
    order = data.times
    if settings.left_out == ANY:
        order = np.random.default_rng(settings.seed).permutation(len(order))
    tested = leave_one_out(data.users, order)
    users, lists = lists_to_rank(data, tested, 99, settings.seed)
    trained = ~tested
    examples = movielens_batches.Examples(
        {"user": data.users[trained], "item": data.items[trained]},
        np.ones(trained.sum(), np.float32),
        data.num_items,
        negatives=4,
        seed=settings.seed,
    )

    def score(predictions: np.ndarray) -> dict[str, float]:
        of_lists = predictions.reshape(lists.shape)
        return {
            "HR@10": metrics.hit_rate(of_lists, 10),
            "NDCG@10": metrics.ndcg(of_lists, 10),
        }

    popularity = np.bincount(data.items[trained], minlength=data.num_items)
    return Task(
        examples=examples,
        features=dict,
        make_model=lambda: movielens_models.neural_factorisation(
            data.num_users, data.num_items, settings
        ),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        tested={"user": np.repeat(users, lists.shape[1]), "item": lists.ravel()},
        score=score,
        baseline=score(popularity[lists]),
        baseline_name="the most popular",
    )


def rating(data: movielens_files.MovieLens, settings: Settings) -> Task:
    """Matrix factorisation with biases: how many stars a user gives.

    It is tested on one of five random parts, which the seed chooses: the seeds 0 to 4
    make a cross-validation with five folds.
    """
    tested = fold(len(data.ratings), settings.seed)
    trained = ~tested
    mean = float(data.ratings[trained].mean())

    def score(predictions: np.ndarray) -> dict[str, float]:
        return {"RMSE": metrics.rmse(data.ratings[tested], np.clip(predictions, 1, 5))}

    means = _means(data.items[trained], data.ratings[trained], data.num_items)
    return Task(
        examples=movielens_batches.Examples(
            {"user": data.users[trained], "item": data.items[trained]},
            data.ratings[trained],
            data.num_items,
            seed=settings.seed,
        ),
        features=dict,
        make_model=lambda: movielens_models.biased_factorisation(
            data.num_users, data.num_items, settings, mean
        ),
        loss="mse",
        tested={"user": data.users[tested], "item": data.items[tested]},
        score=score,
        baseline=score(means[data.items[tested]]),
        baseline_name="each film's mean",
    )


def liking(data: movielens_files.MovieLens, settings: Settings) -> Task:
    """Returns a cross network on all features: whether a user gives four stars or more.

    It is tested on one of five random parts, like `rating`.
    """
    tested = fold(len(data.ratings), settings.seed)
    trained = ~tested
    labels = (data.ratings >= 4).astype(np.float32)
    days = data.times // 86400
    columns = {
        "user": data.users,
        "item": data.items,
        "hour": (data.times // 3600 % 24).astype(np.int32),
        "weekday": (days % 7).astype(np.int32),
        # These are months since the first rating, since tastes and users change.
        "month": ((days - days.min()) // 30).astype(np.int32),
    }
    of_users, of_items = data.user_features, data.item_features
    sizes = {
        name: int(column.max()) + 1
        for name, column in (columns | of_users | of_items).items()
    }
    genres = data.genres.astype(np.float32)

    def features(columns: Mapping[str, Any]) -> dict[str, Any]:
        users, items = columns["user"], columns["item"]
        return {
            **columns,
            **{name: tf.gather(column, users) for name, column in of_users.items()},
            **{name: tf.gather(column, items) for name, column in of_items.items()},
            "genres": tf.gather(genres, items),
        }

    def score(predictions: np.ndarray) -> dict[str, float]:
        return {"AUC": metrics.auc(labels[tested], predictions)}

    means = _means(data.items[trained], labels[trained], data.num_items)
    return Task(
        examples=movielens_batches.Examples(
            {name: column[trained] for name, column in columns.items()},
            labels[trained],
            data.num_items,
            seed=settings.seed,
        ),
        features=features,
        make_model=lambda: movielens_models.cross_network(
            sizes, genres.shape[1], settings
        ),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        tested={name: column[tested] for name, column in columns.items()},
        score=score,
        baseline=score(means[data.items[tested]]),
        baseline_name="each film's share",
    )


def _means(items: np.ndarray, values: np.ndarray, num_items: int) -> np.ndarray:
    """Returns the mean of each item's values, or of all values if it has none."""
    counts = np.bincount(items, minlength=num_items)
    sums = np.bincount(items, values, minlength=num_items)
    return np.where(counts > 0, sums / np.maximum(counts, 1), values.mean())


# The tasks by the names of their models.
TASKS: dict[str, Callable[[movielens_files.MovieLens, Settings], Task]] = {
    "neumf": ranking,
    "mf": rating,
    "dcn": liking,
}
