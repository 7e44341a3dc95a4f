"""Finds a model's optimizers and metrics, wherever they are."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf


def optimizers_of(model: Any) -> Iterator[Any]:
    """Finds each optimizer of a model, and those that it wraps or consists of.

    Besides the optimizer with which it was compiled, a model with a train step of its
    own may have some in attributes.
    """
    for optimizer in parts_of(model, tf.keras.optimizers.Optimizer):
        while optimizer is not None:
            yield optimizer
            if hasattr(optimizer, "all_optimizers"):
                yield from optimizer.all_optimizers()
            optimizer = getattr(optimizer, "inner_optimizer", None)


def parts_of(model: Any, kind: Any) -> list[Any]:
    """Finds all objects of a kind in a model's attributes, and in lists and dicts."""
    seen: dict[int, Any] = {}
    found = [getattr(model, "optimizer", None), *vars(model).values()]
    for x in found:
        if id(x) not in seen:
            seen[id(x)] = x
            if isinstance(x, Mapping):
                found.extend(x.values())
            elif isinstance(x, (list, tuple)):
                found.extend(x)
    return [x for x in seen.values() if isinstance(x, kind)]
