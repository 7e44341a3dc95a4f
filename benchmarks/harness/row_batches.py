"""Tables, and batches of their rows, for benchmarks of sparse gradients on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from harness import gradients
from harness.benchmark import Point

MILLION = 1_000_000
ROWS = (MILLION, 10 * MILLION, 100 * MILLION)
WIDTHS = (16, 64, 128)
INDICES = (4096, 65536, MILLION)
DISTRIBUTIONS = ("unique", "uniform", "zipf(1.1)")
# Each step takes others of these, so that none is in the cache.
BATCHES = 4


def points(quick: bool) -> Iterator[Point]:
    """All tables and batches; those that share batches come one after the other."""
    for rows in [10_000] if quick else ROWS:
        for distribution in DISTRIBUTIONS:
            for count in [1000] if quick else INDICES:
                for width in [64] if quick else WIDTHS:
                    yield {
                        "rows": rows,
                        "width": width,
                        "indices": count,
                        "distribution": distribution,
                    }


def of(point: Point) -> tuple[np.ndarray, ...]:
    """BATCHES arrays of indices, int64."""
    return _draw(point["distribution"], point["rows"], point["indices"])


@functools.lru_cache(maxsize=1)
def _draw(distribution: str, rows: int, count: int) -> tuple[np.ndarray, ...]:
    if distribution == "unique":
        rng = np.random.default_rng(4)
        return tuple(rng.choice(rows, count, replace=False) for _ in range(BATCHES))
    sampler = _sampler(distribution, rows)
    return tuple(sampler.draw(count) for _ in range(BATCHES))


# For a hundred million rows it takes a while to make one.
@functools.lru_cache(maxsize=1)
def _sampler(distribution: str, rows: int) -> gradients.RowSampler:
    return gradients.RowSampler(distribution, rows, np.random.default_rng(4))
