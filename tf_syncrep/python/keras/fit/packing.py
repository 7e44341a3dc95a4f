"""Packs the numbers that a function returns into one tensor, to fetch them at once."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def packed(leaves: list[Any]) -> tuple[list[Any], tuple[tf.Tensor, list[Any]]]:
    """Packs all numbers of which a float64 is as exact into one tensor.

    Returns for each leaf the NumPy dtype of a number that was packed, or None; and the
    tensor with the leaves that were not.
    """
    packing = [
        leaf.dtype.as_numpy_dtype if _is_plain_number(leaf) else None for leaf in leaves
    ]
    numbers = [
        tf.cast(leaf, tf.float64)
        for leaf, kind in zip(leaves, packing, strict=True)
        if kind
    ]
    others = [leaf for leaf, kind in zip(leaves, packing, strict=True) if not kind]
    stacked = tf.stack(numbers) if numbers else tf.zeros([0], tf.float64)
    return packing, (stacked, others)


def unpacked(packing: list[Any], numbers: Any, others: Any) -> list[Any]:
    """Returns the leaves, of their dtypes, from what `packed` returned."""
    numbers, others = iter(numbers), iter(others)
    return [kind(next(numbers)) if kind else next(others) for kind in packing]


def _is_plain_number(leaf: Any) -> bool:
    return (
        isinstance(leaf, tf.Tensor)
        and leaf.shape.rank == 0
        and (leaf.dtype.is_floating or (leaf.dtype.is_integer and leaf.dtype.size <= 4))
    )
