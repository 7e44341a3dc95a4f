"""Packs all numbers that a function returns into one tensor, to fetch them at once."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def packed(leaves: list[Any]) -> tuple[list[bool], tuple[tf.Tensor, list[Any]]]:
    """Packs all numbers into one tensor.

    Returns:
        For each leaf whether it was packed; and the tensor with the leaves that were
        not.
    """
    packing = [_is_plain_number(leaf) for leaf in leaves]
    numbers = [
        tf.cast(leaf, tf.float64)
        for leaf, is_number in zip(leaves, packing, strict=True)
        if is_number
    ]
    others = [
        leaf for leaf, is_number in zip(leaves, packing, strict=True) if not is_number
    ]
    stacked = tf.stack(numbers) if numbers else tf.zeros([0], tf.float64)
    return packing, (stacked, others)


def unpacked(packing: list[bool], numbers: Any, others: Any) -> list[Any]:
    """Returns the leaves from what `packed` returned."""
    numbers, others = iter(numbers), iter(others)
    return [next(numbers if is_number else others) for is_number in packing]


def _is_plain_number(leaf: Any) -> bool:
    return (
        isinstance(leaf, tf.Tensor)
        and leaf.shape.rank == 0
        and (leaf.dtype.is_floating or leaf.dtype.is_integer)
    )
