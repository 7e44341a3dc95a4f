"""Finds a model's optimizers and metrics, wherever they are."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat import trainer


def optimizers_of(model: Any) -> Iterator[Any]:
    """Finds each optimizer of a model, and those that it wraps or consists of.

    Besides the optimizer with which it was compiled, a model with a train step of its
    own may have some in attributes.
    """
    for optimizer in parts_of(model, tf.keras.optimizers.Optimizer):
        yield from _with_members(optimizer)


def _with_members(optimizer: Any) -> Iterator[Any]:
    yield optimizer
    for member in members_of(optimizer):
        yield from _with_members(member)


def members_of(optimizer: Any) -> list[Any]:
    """Finds the optimizers that an optimizer wraps, or of which it consists.

    Keras' MultiOptimizer makes some of them when it is built. It may have others that
    train no variable, which are never built, and are left out then.
    """
    if hasattr(optimizer, "all_optimizers"):
        return optimizer.all_optimizers()
    # Keras has it since 3.15.
    if isinstance(optimizer, getattr(tf.keras.optimizers, "MultiOptimizer", ())):
        is_built = trainer.is_optimizer_built
        return [
            x for x in optimizer.optimizers if is_built(x) or not is_built(optimizer)
        ]
    inner = getattr(optimizer, "inner_optimizer", None)
    return [] if inner is None else [inner]


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
