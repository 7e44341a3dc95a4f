"""The NeuMF of `examples/movielens.py` in plain PyTorch, without tf_syncrep.

It has the same data, splits, model, losses, learning rates and scores, with PyTorch's
own `Embedding(sparse=True)` and `SparseAdam` for tables, and `Adam` for layers. It
takes the example's options, and writes the same `scores.json`.

    python benchmarks/harness/torch_neumf.py --model neumf --left-out any --runs 5
"""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np
import other_neumf


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


def train(training: other_neumf.Training) -> tuple[np.ndarray, float]:
    """Trains once; returns the scores of what is tested, and the seconds."""
    torch = importlib.import_module("torch")
    torch.manual_seed(training.seed)
    model = make_model(torch, training.users, training.items, training.width)
    tables = [table.weight for table in model.tables]
    layers = [p for p in model.parameters() if all(p is not t for t in tables)]
    optimizers = [
        torch.optim.SparseAdam(tables, training.learning_rate, eps=1e-7),
        torch.optim.Adam(layers, training.learning_rate, eps=1e-7),
    ]
    loss = torch.nn.BCEWithLogitsLoss()
    with other_neumf.Clock() as clock:
        for rate, batches in training.epochs:
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = rate
            for users, items, labels in (map(torch.from_numpy, b) for b in batches):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                logits, squares = model(users, items)
                total = loss(logits, labels)
                (total + training.shrink * squares / len(labels)).backward()
                for optimizer in optimizers:
                    optimizer.step()
    with torch.no_grad():
        logits, _ = model(*map(torch.from_numpy, training.tested))
    return logits.numpy(), clock.seconds


if __name__ == "__main__":
    other_neumf.main("torch", train)
