"""Which ratings are trained on, and which are tested on."""

from __future__ import annotations

import movielens_files
import numpy as np

# Of these parts one is tested on, where ratings are predicted.
FOLDS = 5


def leave_one_out(users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Returns where each user's last rating is: bool `[ratings]`.

    Of ratings of the same second the last one in the file counts. (Two of five users of
    MovieLens-100K have several in their last second.)

    Args:
        users: `[ratings]`.
        times: `[ratings]`: seconds, or whatever else says what comes last.
    """
    order = np.lexsort([np.arange(len(users)), times, users])
    is_last = np.append(users[order][1:] != users[order][:-1], True)
    chosen = np.zeros(len(users), bool)
    chosen[order[is_last]] = True
    return chosen


def fold(ratings: int, number: int) -> np.ndarray:
    """One of `FOLDS` random parts of the ratings: bool `[ratings]`.

    The parts are the same for everybody, have no rating in common, and together all.

    Args:
        ratings: how many there are.
        number: which part; its remainder by `FOLDS` counts.
    """
    order = np.random.default_rng(0).permutation(ratings)
    chosen = np.zeros(ratings, bool)
    chosen[order[number % FOLDS :: FOLDS]] = True
    return chosen


def lists_to_rank(
    data: movielens_files.MovieLens, tested: np.ndarray, others: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lists of items for users, each the right one and others to tell it from.

    Args:
        data: whose ratings.
        tested: bool `[ratings]`: the ratings whose items are the right ones.
        others: how many items that the user has not rated follow the right one; fewer
            where a user has left fewer, which is an error.
        seed: of their choice.

    Returns:
        Users `[lists]` and items `[lists, 1 + others]`, int32.
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
