"""Optimizers with a rule of `tfs.ops`, each as contenders, and their check.

The contenders of each are the op, the Keras optimizer, that of Keras 3 with the same
arguments, and the plain loop of floor.cc.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import rule_reference
import tensorflow as tf

import tf_syncrep as tfs

from . import contenders, native
from .contenders import Batches, Variables
from .timing import Contender

_RATE = 1e-2
_COMPARED = 10_000
# The order is that of floor.cc.
_IN_FLOOR = ("adagrad", "ftrl", "momentum", "rowwise_adagrad", "sgd")


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer and its rule.

    `theirs`: the class of Keras, or None if it has none.
    """

    name: str
    ours: Any
    theirs: str | None
    options: Mapping[str, float]
    rule: str
    numbers: Mapping[str, float]
    slots: Mapping[str, float]

    @property
    def raw_op(self) -> str:
        """Name of the op as a contender."""
        return f"{contenders.RAW_OP}, {self.name}"

    @property
    def keras(self) -> str:
        """Name of the Keras optimizer as a contender."""
        return f"tfs.keras.{self.name}"

    @property
    def stock(self) -> str:
        """Name of Keras 3's as a contender."""
        return f"Keras 3 {self.name}"

    @property
    def floor(self) -> str:
        """Name of the plain loop as a contender."""
        return f"{contenders.FLOOR}, {self.name}"


OPTIMIZERS = (
    Optimizer(
        *("Adagrad", tfs.keras.Adagrad, "Adagrad", {}, "adagrad"),
        {"lr": _RATE, "epsilon": 1e-7},
        {"accumulator": 0.1},
    ),
    Optimizer(
        *("RowwiseAdagrad", tfs.keras.RowwiseAdagrad, None, {}, "rowwise_adagrad"),
        {"lr": _RATE, "epsilon": 1e-8},
        {"accumulator": 0.0},
    ),
    Optimizer(
        *("FTRL", tfs.keras.FTRL, "Ftrl"),
        {"l1_regularization_strength": 1e-3, "beta": 1.0},
        "ftrl",
        {
            "lr": _RATE,
            "lr_power": -0.5,
            "l1": 1e-3,
            "l2": 0.0,
            "l2_shrinkage": 0.0,
            "beta": 1.0,
        },
        {"accumulator": 0.1, "linear": 0.0},
    ),
    Optimizer("SGD", tfs.keras.SGD, "SGD", {}, "sgd", {"lr": _RATE}, {}),
    Optimizer(
        *("SGD with momentum", tfs.keras.SGD, "SGD", {"momentum": 0.9}, "momentum"),
        {"lr": _RATE, "momentum": 0.9},
        {"momentum": 0.0},
    ),
)


def raw_op(optimizer: Optimizer, variables: Variables, batches: Batches) -> Contender:
    """The op, called eagerly, of one variable."""
    (initial,) = variables
    table = tf.Variable(tf.constant(initial))
    slots = {
        name: tf.Variable(tf.constant(value))
        for name, value in _initial_slots(optimizer, initial).items()
    }
    handles = {name: slot.handle for name, slot in slots.items()}
    numbers = {name: tf.constant(value) for name, value in optimizer.numbers.items()}
    feeds = [contenders.tensors_of(gradient) for (gradient,) in batches]

    def step(i: int) -> None:
        values, *rows = feeds[i % len(feeds)]
        operands = (optimizer.rule, table.handle, handles, numbers, values)
        if rows:
            tfs.ops.resource_sparse_apply_rule(*operands, rows[0])
        else:
            tfs.ops.resource_apply_rule(*operands)

    def read() -> list[np.ndarray]:
        # The slots are variables that nothing else keeps alive.
        assert len(slots) == len(handles)
        return [table.numpy()]

    return Contender(optimizer.raw_op, step, read)


def keras(optimizer: Optimizer, variables: Variables, batches: Batches) -> Contender:
    """Our Keras optimizer, in a `tf.function`."""
    made = optimizer.ours(_RATE, **optimizer.options)
    return contenders.in_keras(optimizer.keras, tf.keras, made, variables, batches)


def stock(
    optimizer: Optimizer, variables: Variables, batches: Batches
) -> list[Contender]:
    """Keras 3's optimizers, in a `tf.function`; empty if there is none."""
    module = contenders.installed_kerases().get(contenders.KERAS_3_ADAM)
    if optimizer.theirs is None or module is None:
        return []
    made = getattr(module.optimizers, optimizer.theirs)(_RATE, **optimizer.options)
    return [contenders.in_keras(optimizer.stock, module, made, variables, batches)]


def floor(optimizer: Optimizer, variables: Variables, batches: Batches) -> Contender:
    """The loop of floor.cc, which is right if no row occurs twice in a batch."""
    (initial,) = variables
    table = native.Memory(initial.shape)
    table.array[...] = initial
    slots = []
    for value in _initial_slots(optimizer, initial).values():
        slot = native.Memory(value.shape)
        slot.array[...] = value
        slots.append(slot)
    pointers = [slot.pointer for slot in slots]
    pointers += [None] * (2 - len(pointers))
    numbers = np.array(list(optimizer.numbers.values()), np.float32)
    rule, library = _IN_FLOOR.index(optimizer.rule), native.library()

    def step(i: int) -> None:
        (gradient,) = batches[i % len(batches)]
        assert gradient.indices is not None
        library.floor_sparse_rule(
            *(rule, table.pointer, *pointers, gradient.values.ctypes.data),
            *(gradient.indices.ctypes.data, *gradient.values.shape),
            numbers.ctypes.data,
        )

    def read() -> list[np.ndarray]:
        assert len(slots) == len(optimizer.slots)
        return [table.array]

    return Contender(optimizer.floor, step, read)


def check(
    optimizer: Optimizer,
    contender: Contender,
    variables: Variables,
    batches: Batches,
    steps: int = 2,
) -> None:
    """Makes the first steps of a contender and compares the variable with the twin.

    Of a variable with a dense gradient, which has one axis, a part is compared.

    Raises AssertionError: if it is wrong.
    """
    for i in range(steps):
        contender.step(i)
    (initial,), (actual,) = variables, contender.read()
    used: Sequence[Any] = [batches[i % len(batches)][0] for i in range(steps)]
    is_dense = used[0].indices is None
    if is_dense:
        rows = np.unique(np.linspace(0, len(initial) - 1, _COMPARED).astype(np.int64))
    else:
        rows = np.unique(np.concatenate([gradient.indices for gradient in used]))
    var: Any = initial[rows]
    slots: dict[str, Any] = {
        name: slot[rows] for name, slot in _initial_slots(optimizer, initial).items()
    }
    for gradient in used:
        if is_dense:
            of_rows = (gradient.values[rows],)
        else:
            of_rows = (gradient.values, np.searchsorted(rows, gradient.indices))
        var, slots = rule_reference.apply(
            optimizer.rule, var, slots, optimizer.numbers, *of_rows
        )
    np.testing.assert_allclose(
        actual[rows], var, rtol=1e-3, atol=1e-3 * _RATE, err_msg=contender.name
    )
    if is_dense:
        return
    others = np.ones(len(initial), bool)
    others[rows] = False
    assert np.array_equal(actual[others], initial[others]), (
        f"{contender.name} moved other rows"
    )


def _initial_slots(optimizer: Optimizer, table: np.ndarray) -> dict[str, np.ndarray]:
    shape = rule_reference.slot_shape(optimizer.rule, table.shape)
    return {
        name: np.full(shape, value, np.float32)
        for name, value in optimizer.slots.items()
    }
