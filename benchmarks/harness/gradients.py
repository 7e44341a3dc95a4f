"""Inputs of the benchmarks: gradients, and indices as recommenders draw them."""

from __future__ import annotations

import dataclasses

import numpy as np

# TensorFlow uses NumPy's memory as it is if it is aligned, and copies it otherwise.
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Gradient:
    """The gradient of one variable.

    `indices`: int64, the rows that `values` belong to; None for a dense gradient.
    """

    values: np.ndarray
    indices: np.ndarray | None = None

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The values and, if it is sparse, the indices."""
        return (self.values,) if self.indices is None else (self.values, self.indices)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy in memory that TensorFlow uses in place."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def dense(rng: np.random.Generator, shape: tuple[int, ...]) -> Gradient:
    """A gradient of independent normal elements."""
    return Gradient(aligned(rng.standard_normal(shape, np.float32)))


def sparse(rng: np.random.Generator, indices: np.ndarray, width: int) -> Gradient:
    """A gradient of independent normal elements for the rows `indices`."""
    values = rng.standard_normal((len(indices), width), np.float32)
    return Gradient(aligned(values), aligned(indices.astype(np.int64)))


class RowSampler:
    """Draws rows of a table.

    `distribution`: "uniform", or "zipf(s)": the k-th most popular row is drawn in
    proportion to k to the power -s; popular rows lie anywhere in the table.
    """

    def __init__(self, distribution: str, rows: int, rng: np.random.Generator):
        self._rows = rows
        self._rng = rng
        self._cumulative = None
        if distribution.startswith("zipf("):
            exponent = float(distribution[len("zipf(") : -1])
            weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
            self._cumulative = np.cumsum(weights / weights.sum())
            self._row_of_rank = rng.permutation(rows)
        elif distribution != "uniform":
            raise ValueError(
                f"distribution must be uniform or zipf(s). Received: {distribution!r}"
            )

    def draw(self, count: int) -> np.ndarray:
        """Draws `count` rows, with replacement, int64."""
        if self._cumulative is None:
            return self._rng.integers(0, self._rows, count)
        ranks = np.searchsorted(self._cumulative, self._rng.random(count))
        return self._row_of_rank[np.minimum(ranks, self._rows - 1)]
