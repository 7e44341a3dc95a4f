"""What `fit` with `prefetch_rows` computes on one worker, in float64.

The model adds up the vectors of two features, times a kernel, and a bias. Its data has
in each batch rows of the one before.
"""

from collections.abc import Iterator

import numpy as np

RATE, STEPS, PER_EXECUTION, EPOCHS = 0.25, 10, 4, 2
FEATURES, ROWS, WIDTH, BATCH = 2, 6, 3, 5
# What ids are made of that follow from rows.
FOUND = 7


def data() -> tuple[np.ndarray, np.ndarray]:
    """Ids and targets of all steps of an epoch."""
    random = np.random.default_rng(7)
    ids = random.integers(0, ROWS, (STEPS * BATCH, FEATURES)).astype(np.int32)
    targets = random.uniform(-1, 1, (STEPS * BATCH, 1)).astype(np.float32)
    return ids, targets


def first_values() -> list[np.ndarray]:
    """Those of the tables, the kernel and the bias."""
    random = np.random.default_rng(8)
    shapes = [(ROWS, WIDTH)] * FEATURES + [(FEATURES * WIDTH, 1), (1,)]
    return [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


def _executions() -> Iterator[np.ndarray]:
    """The steps of an epoch, execution by execution; single ones at its end."""
    num_full = STEPS // PER_EXECUTION
    yield from np.split(np.arange(num_full * PER_EXECUTION), num_full)
    yield from np.arange(num_full * PER_EXECUTION, STEPS)[:, None]


def trained(
    prefetch: bool, twice: bool = False
) -> tuple[list[np.ndarray], list[float], list[float]]:
    """The weights, and the mean squared and the mean absolute error of each epoch.

    With `prefetch` a step misses the update of rows by the one before. With `twice` ids
    of the second feature follow from a lookup of the first, whose rows come early, if
    any do; those that count cannot.
    """
    ids, targets = data()
    first = [x.astype(np.float64) for x in first_values()]
    tables, (kernel, bias) = np.stack(first[:FEATURES]), first[FEATURES:]
    squares, absolutes = [], []
    for _ in range(EPOCHS):
        errors = []
        for steps in _executions():
            known = tables
            for step in steps:
                early = known if prefetch else tables
                # What the next step will see: all but the update of this one.
                known = tables
                batch = slice(step * BATCH, (step + 1) * BATCH)
                asked = ids[batch].copy()
                if twice:
                    sizes = np.abs(early[0][asked[:, 0]]).sum(axis=1)
                    asked[:, 1] = (sizes * FOUND).astype(np.int32) % ROWS
                    early = tables
                rows = [t[i] for t, i in zip(early, asked.T, strict=True)]
                x = np.concatenate(rows, axis=1)
                error = x @ kernel + bias - targets[batch]
                errors.append(error)
                gradient = 2 * error / BATCH
                of_rows = np.split(gradient @ kernel.T, FEATURES, axis=1)
                kernel = kernel - RATE * (x.T @ gradient)
                bias = bias - RATE * gradient.sum(axis=0)
                tables = tables.copy()
                for feature in range(FEATURES):
                    np.add.at(
                        tables[feature], asked[:, feature], -RATE * of_rows[feature]
                    )
        squares.append(np.mean(np.square(errors)))
        absolutes.append(np.mean(np.abs(errors)))
    return [*tables, kernel, bias], squares, absolutes
