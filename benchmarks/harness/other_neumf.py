"""What NeuMF of other libraries shares: the data, splits and options of the example.

`examples/movielens.py` trains the model by tf_syncrep; torch_neumf.py and tfra_neumf.py
train the same one without it, by the interpreters that have those libraries.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples"))
import metrics
import movielens_files
import movielens_splits
from movielens_settings import ANY, LAST, SETTINGS

NEGATIVES = 4


@dataclasses.dataclass(frozen=True)
class Training:
    """What a library is given to train the model.

    Attributes:
        users, items: how many there are.
        width: elements of a vector.
        shrink: the weight of the sum of squares of a batch's vectors.
        learning_rate: the one at the beginning.
        seed: for initial weights.
        epochs: for each epoch, its learning rate and its batches of user ids, item ids,
            both int64 `[batch]`, and labels, float32 `[batch]`.
        tested: user ids and item ids whose scores are asked for, int64 `[tested]`.
    """

    users: int
    items: int
    width: int
    shrink: float
    learning_rate: float
    seed: int
    epochs: Iterator[tuple[float, Iterator[tuple[np.ndarray, ...]]]]
    tested: tuple[np.ndarray, np.ndarray]


# Trains, and returns the scores `[tested]`, and the seconds that training took.
Train = Callable[[Training], tuple[np.ndarray, float]]


def draw_epoch(
    random: np.random.Generator,
    users: np.ndarray,
    items: np.ndarray,
    is_rated: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users, items and labels of an epoch, with new negatives, in random order."""
    of_negatives = np.repeat(users, NEGATIVES)
    drawn = random.integers(is_rated.shape[1], size=len(of_negatives))
    while (wrong := is_rated[of_negatives, drawn]).any():
        drawn[wrong] = random.integers(is_rated.shape[1], size=wrong.sum())
    order = random.permutation(len(users) + len(drawn))
    labels = np.repeat(np.array([1, 0], np.float32), [len(users), len(drawn)])
    return (
        np.concatenate([users, of_negatives])[order].astype(np.int64),
        np.concatenate([items, drawn])[order].astype(np.int64),
        labels[order],
    )


def run(
    train: Train,
    data: movielens_files.MovieLens,
    seed: int,
    options: argparse.Namespace,
) -> tuple[dict[str, float], dict[str, float], float]:
    """Trains once; returns scores, those of the most popular, and seconds."""
    order = data.times
    if options.left_out == ANY:
        order = np.random.default_rng(seed).permutation(len(order))
    tested = movielens_splits.leave_one_out(data.users, order)
    users, lists = movielens_splits.lists_to_rank(data, tested, 99, seed)
    of_users, of_items = data.users[~tested], data.items[~tested]
    is_rated = np.zeros([data.num_users, data.num_items], bool)
    is_rated[of_users, of_items] = True
    random = np.random.default_rng(seed)

    def epochs():
        for epoch in range(options.epochs):
            share = epoch / options.epochs
            columns = draw_epoch(random, of_users, of_items, is_rated)
            begins = range(0, len(columns[0]), options.batch_size)
            yield (
                options.learning_rate * (1 + math.cos(math.pi * share)) / 2,
                (
                    tuple(x[begin : begin + options.batch_size] for x in columns)
                    for begin in begins
                ),
            )

    settings = SETTINGS["neumf"]
    scores, seconds = train(
        Training(
            data.num_users,
            data.num_items,
            settings.width,
            settings.shrink,
            options.learning_rate,
            seed,
            epochs(),
            (
                np.repeat(users, lists.shape[1]).astype(np.int64),
                lists.ravel().astype(np.int64),
            ),
        )
    )
    popularity = np.bincount(of_items, minlength=data.num_items)
    return score(scores.reshape(lists.shape)), score(popularity[lists]), seconds


def score(of_lists: np.ndarray) -> dict[str, float]:
    """The scores of lists, the right film first."""
    return {"HR@10": metrics.hit_rate(of_lists), "NDCG@10": metrics.ndcg(of_lists)}


def main(library: str, train: Train) -> None:
    """Trains with each seed, and writes the scores.

    Args:
        library: for the name of the folder of results.
        train: trains once.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    add = parser.add_argument
    add("--model", choices=["neumf"], default="neumf")
    add("--left-out", choices=[LAST, ANY], default=LAST)
    add("--data", type=pathlib.Path)
    settings = SETTINGS["neumf"]
    add("--epochs", type=int, default=settings.epochs)
    add("--batch-size", type=int, default=settings.batch_size)
    add("--learning-rate", type=float, default=settings.learning_rate)
    add("--runs", type=int, default=1)
    add("--test-every", help="not used")
    add("--output", type=pathlib.Path, default="build/movielens")
    options = parser.parse_args()
    data = movielens_files.read(
        options.data or movielens_files.fetch(options.output / "data")
    )
    runs = [run(train, data, seed, options) for seed in range(options.runs)]
    names = list(runs[0][0])
    summary = {
        "epochs": options.epochs,
        "seconds": [seconds for *_, seconds in runs],
        "scores": {name: [found[name] for found, *_ in runs] for name in names},
        "baseline": "the most popular",
        "baseline_scores": {
            name: [other[name] for _, other, _ in runs] for name in names
        },
    }
    folder = options.output / f"neumf-{library}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scores.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary))


class Clock:
    """Times what is done within it, in `seconds`."""

    def __enter__(self) -> Clock:
        self.seconds, self._begin = 0.0, time.monotonic()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.seconds = time.monotonic() - self._begin
