"""Stochastic rounding in plain NumPy: the random numbers of the kernels, bit by bit.

`draws` follows `cc/lib/rules/stochastic_rounding.h`. `neighbours` follows the
definition: both numbers that a value may become, and the probability of each.
"""

from typing import Any

import numpy as np

# So many elements of a dense update by a rule that is not rowwise count as a row.
BLOCK = 4096
_WORD = 2**64 - 1


def hash_row(row: int) -> int:
    """Hashes by the finaliser of SplitMix64."""
    x = (row + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def draws(seed: int, update: int, row: int, size: int) -> np.ndarray:
    """Returns the random numbers of the elements of a row in one update, as uint32."""
    stream = hash_row(hash_row(seed & _WORD) ^ (update & _WORD))
    key = hash_row(stream ^ row)
    x = np.arange(size, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x += np.uint32(key & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x ^= np.uint32(key >> 32)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
    return x ^ (x >> np.uint32(15))


def dense_draws(
    seed: int,
    update: int,
    shape: tuple[int, ...],
    is_rowwise: bool = False,
    first_row: int = 0,
    stride: int = 1,
) -> np.ndarray:
    """Returns the random numbers of a dense update, of the shape of the variable."""
    size = int(np.prod(shape))
    width = size // shape[0] if is_rowwise else BLOCK
    rows = [
        draws(seed, update, first_row + stride * row, min(width, size - begin))
        for row, begin in enumerate(range(0, size, width))
    ]
    return np.concatenate(rows).reshape(shape)


def sparse_draws(
    seed: int, update: int, shape: tuple[int, ...], first_row: int = 0, stride: int = 1
) -> np.ndarray:
    """Returns the random numbers of all rows of a table's part, of its shape."""
    width = int(np.prod(shape[1:]))
    rows = [
        draws(seed, update, first_row + stride * row, width) for row in range(shape[0])
    ]
    return np.reshape(rows, shape)


def neighbours(values: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers that finite values may become."""
    values = np.asarray(values, np.float64)
    nearest = values.astype(np.float32).astype(dtype)
    outward = np.abs(nearest.astype(np.float64)) <= np.abs(values)
    bits = nearest.view(np.uint16) & np.uint16(0x7FFF)
    inner = bits - ~outward
    low, high = (
        x.astype(np.uint16).view(dtype).astype(np.float64) for x in (inner, inner + 1)
    )
    is_exact = np.abs(values) == low
    high = np.where(is_exact, low, high)
    up = np.where(
        is_exact, 0, (np.abs(values) - low) / np.where(is_exact, 1, high - low)
    )
    return np.copysign(low, values), np.copysign(high, values), up


def round_to(values: Any, dtype: Any, random: np.ndarray) -> np.ndarray:
    """Rounds float32 values by random numbers, as uint32, as the kernels do."""
    values = np.asarray(values, np.float32)
    low, high, up = neighbours(values, dtype)
    info = np.finfo(dtype) if dtype == np.float16 else None
    # So many random bits decide: those that a float32 has and the dtype has not.
    bits = 16 if info is None else np.where(np.abs(values) < info.tiny, 20, 13)
    drawn = random.astype(np.uint64) >> np.asarray(32 - bits, np.uint64)
    goes_up = np.floor(up * 2.0**bits) + drawn >= 2.0**bits
    return np.where(goes_up, high, low).astype(np.float32).astype(dtype)
