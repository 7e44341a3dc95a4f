"""The NeuMF of `examples/movielens.py` in plain PyTorch, without tf_syncrep.

It has the same data, splits, model, losses, learning rates and scores, with PyTorch's
own `Embedding(sparse=True)` and `SparseAdam` for tables, and `Adam` for layers. It
takes the example's options, and writes the same `scores.json`.

    python benchmarks/harness/torch_neumf.py --model neumf --left-out any --runs 5
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import pathlib
import sys
import time
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples"))
import metrics
import movielens_files
import movielens_splits
from movielens_settings import ANY, LAST, SETTINGS

NEGATIVES = 4


def make_model(torch: Any, users: int, items: int, width: int) -> Any:
    """Makes the four tables and the layers, with the initial values of Keras' model."""

    class NeuMF(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = torch.nn.ModuleList(
                torch.nn.Embedding(rows, width, sparse=True)
                for rows in (users, items, users, items)
            )
            for table in self.tables:
                torch.nn.init.normal_(table.weight, std=0.01)
            sizes = (2 * width, 2 * width, width, width // 2)
            self.hidden = torch.nn.Sequential(
                *(
                    layer
                    for size, units in itertools.pairwise(sizes)
                    for layer in (torch.nn.Linear(size, units), torch.nn.ReLU())
                )
            )
            self.last = torch.nn.Linear(width + width // 2, 1)
            for layer in [*self.hidden, self.last]:
                if isinstance(layer, torch.nn.Linear):
                    torch.nn.init.xavier_uniform_(layer.weight)
                    torch.nn.init.zeros_(layer.bias)

        def forward(self, users, items):
            """The logarithms of the odds `[batch]`, and the vectors' sum of squares."""
            ids = (users, items, users, items)
            vectors = [table(i) for table, i in zip(self.tables, ids, strict=True)]
            hidden = self.hidden(torch.cat(vectors[2:], 1))
            both = torch.cat([vectors[0] * vectors[1], hidden], 1)
            return self.last(both)[:, 0], sum((v**2).sum() for v in vectors)

    return NeuMF()


def draw_epoch(
    random: np.random.Generator, users: np.ndarray, items: np.ndarray, is_rated: Any
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


def train(
    torch: Any, data: movielens_files.MovieLens, seed: int, options: argparse.Namespace
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

    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    model = make_model(torch, data.num_users, data.num_items, SETTINGS["neumf"].width)
    tables = [table.weight for table in model.tables]
    layers = [p for p in model.parameters() if all(p is not t for t in tables)]
    optimizers = [
        torch.optim.SparseAdam(tables, options.learning_rate, eps=1e-7),
        torch.optim.Adam(layers, options.learning_rate, eps=1e-7),
    ]
    loss = torch.nn.BCEWithLogitsLoss()
    begin = time.monotonic()
    for epoch in range(options.epochs):
        share = epoch / options.epochs
        rate = options.learning_rate * (1 + math.cos(math.pi * share)) / 2
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        columns = draw_epoch(random, of_users, of_items, is_rated)
        batches = zip(
            *(torch.from_numpy(x).split(options.batch_size) for x in columns),
            strict=True,
        )
        for batch_users, batch_items, labels in batches:
            for optimizer in optimizers:
                optimizer.zero_grad()
            logits, squares = model(batch_users, batch_items)
            total = loss(logits, labels) + SETTINGS["neumf"].shrink * squares / len(
                labels
            )
            total.backward()
            for optimizer in optimizers:
                optimizer.step()
    seconds = time.monotonic() - begin
    with torch.no_grad():
        logits, _ = model(
            torch.from_numpy(np.repeat(users, lists.shape[1]).astype(np.int64)),
            torch.from_numpy(lists.ravel().astype(np.int64)),
        )
    popularity = np.bincount(of_items, minlength=data.num_items)
    return (
        score(logits.numpy().reshape(lists.shape)),
        score(popularity[lists]),
        seconds,
    )


def score(of_lists: np.ndarray) -> dict[str, float]:
    """The scores of lists, the right film first."""
    return {"HR@10": metrics.hit_rate(of_lists), "NDCG@10": metrics.ndcg(of_lists)}


def main() -> None:
    """Trains with each seed, and writes the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
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
    torch = importlib.import_module("torch")
    data = movielens_files.read(
        options.data or movielens_files.fetch(options.output / "data")
    )
    runs = [train(torch, data, seed, options) for seed in range(options.runs)]
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
    folder = options.output / "neumf-torch"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scores.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
