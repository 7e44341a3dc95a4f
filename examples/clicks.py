"""Made-up clicks of users on items, by tastes that a model can learn.

Each user and each item has a taste: a few hidden numbers. The better the two of a pair
agree, the likelier is a click. Nothing is downloaded or read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

NUM_USERS = 2000
NUM_ITEMS = 500
_TASTES = np.random.default_rng(0).normal(size=(NUM_USERS + NUM_ITEMS, 2))


def batches(seed: int, size: int = 256) -> Iterator[dict[str, np.ndarray]]:
    """Draws batches without end.

    Args:
        seed: a seed for each worker, so that each has its own share of the data.
        size: pairs in a batch.

    Yields:
        "user" and "item", int64 of shape [size], and "click", float32 of the same
        shape, 0 or 1.
    """
    random = np.random.default_rng([1, seed])
    while True:
        user = random.integers(NUM_USERS, size=size)
        item = random.integers(NUM_ITEMS, size=size)
        agreement = np.sum(_TASTES[user] * _TASTES[NUM_USERS + item], axis=1)
        click = random.random(size) < 1 / (1 + np.exp(-3 * agreement))
        yield {"user": user, "item": item, "click": click.astype(np.float32)}
