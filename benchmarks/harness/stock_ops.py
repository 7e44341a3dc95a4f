"""TensorFlow's own dense ops of the optimizers in `rules`, as contenders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from . import contenders, rules
from .contenders import Batches, Variables
from .timing import Contender

# The op of a rule, and its arguments beside the variable, its slots and the gradient.
_Numbers = Mapping[str, float]
_OPS: dict[str, tuple[str, tuple[str, ...], Callable[[_Numbers], _Numbers]]] = {
    "adagrad": (
        *("ResourceApplyAdagradV2", ("accum",)),
        lambda x: {"lr": x["lr"], "epsilon": x["epsilon"]},
    ),
    "ftrl": (
        *("ResourceApplyFtrlV2", ("accum", "linear")),
        lambda x: {
            "lr": x["lr"],
            "l1": x["l1"],
            # It has no beta, and Keras adds that to l2 in this way.
            "l2": x["l2"] + x["beta"] / (2 * x["lr"]),
            "l2_shrinkage": x["l2_shrinkage"],
            "lr_power": x["lr_power"],
        },
    ),
    "sgd": ("ResourceApplyGradientDescent", (), lambda x: {"alpha": x["lr"]}),
    "momentum": (
        *("ResourceApplyKerasMomentum", ("accum",)),
        lambda x: {"lr": x["lr"], "momentum": x["momentum"]},
    ),
}
OPTIMIZERS = tuple(x for x in rules.OPTIMIZERS if x.rule in _OPS)


def name(optimizer: rules.Optimizer) -> str:
    """Name of the contender."""
    return _OPS[optimizer.rule][0]


def dense(
    optimizer: rules.Optimizer, variables: Variables, batches: Batches
) -> Contender:
    """TensorFlow's op, called eagerly, of one variable."""
    op, slot_names, numbers_of = _OPS[optimizer.rule]
    apply = getattr(tf.raw_ops, op)
    (initial,) = variables
    variable = tf.Variable(tf.constant(initial))
    slots = [
        tf.Variable(tf.fill(initial.shape, np.float32(value)))
        for value in optimizer.slots.values()
    ]
    handles = {k: slot.handle for k, slot in zip(slot_names, slots, strict=True)}
    numbers: dict[str, Any] = {
        name: tf.constant(value)
        for name, value in numbers_of(optimizer.numbers).items()
    }
    gradient_name = "delta" if optimizer.rule == "sgd" else "grad"
    feeds = [
        {gradient_name: tensor}
        for (gradient,) in batches
        for tensor in contenders.tensors_of(gradient)
    ]

    def step(i: int) -> None:
        apply(var=variable.handle, **handles, **numbers, **feeds[i % len(feeds)])

    def read() -> list[np.ndarray]:
        # The slots are variables that nothing else keeps alive.
        assert len(slots) == len(handles)
        return [variable.numpy()]

    return Contender(op, step, read)
