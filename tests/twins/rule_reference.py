"""The rules of rule_ops in plain float64 NumPy, with which kernels are compared.

They are written to be read, one row at a time, not to be fast. The formulas are those
of Keras, of FBGEMM's EXACT_ROWWISE_ADAGRAD, and of TensorFlow's ApplyMomentum.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Slots = dict[str, np.ndarray]


def slot_shape(rule: str, shape: Any) -> tuple[int, ...]:
    """Returns the shape of the slots of a variable of this shape."""
    if rule == "rowwise_adagrad":
        return (*shape[:1], *([1] * len(shape[1:])))
    return tuple(shape)


def apply(
    rule: str,
    var: Any,
    slots: Mapping[str, Any],
    numbers: Mapping[str, float],
    grad: Any,
    indices: Any = None,
) -> tuple[np.ndarray, Slots]:
    """One update: all of a variable, or the rows that `indices` names.

    Rows that occur several times are summed first and moved once.

    Returns the variable and its slots after it, as new arrays.
    """
    var = np.array(var, np.float64)
    slots = {name: np.array(slot, np.float64) for name, slot in slots.items()}
    grad = np.array(grad, np.float64)
    if indices is not None:
        total: dict[int, np.ndarray] = {}
        for position, row in enumerate(np.asarray(indices).tolist()):
            total[row] = total.get(row, 0) + grad[position]
    elif var.ndim == 0:
        one = {name: slot.reshape(1) for name, slot in slots.items()}
        var, one = apply(rule, var.reshape(1), one, numbers, grad.reshape(1))
        return var.reshape(()), {name: slot.reshape(()) for name, slot in one.items()}
    else:
        total = dict(enumerate(grad))
    for row, g in total.items():
        of_row = {name: slot[row] for name, slot in slots.items()}
        var[row], of_row = _RULES[rule](var[row], g, **of_row, numbers=numbers)
        for name, value in of_row.items():
            slots[name][row] = value
    return var, slots


def divided(number, divisor):
    """Divides, and makes 0 of what would be divided by 0."""
    return np.divide(number, divisor, out=np.zeros_like(divisor), where=divisor != 0)


def _adagrad(w, g, accumulator, numbers):
    accumulator = accumulator + g**2
    step = divided(numbers["lr"] * g, np.sqrt(accumulator + numbers["epsilon"]))
    return w - step, {"accumulator": accumulator}


def _rowwise_adagrad(w, g, accumulator, numbers):
    accumulator = accumulator + (np.mean(g**2) if g.size else 0)
    step_size = divided(numbers["lr"], np.sqrt(accumulator) + numbers["epsilon"])
    return w - step_size * g, {"accumulator": accumulator}


def _ftrl(w, g, accumulator, linear, numbers):
    lr, power = numbers["lr"], -numbers["lr_power"]
    if lr == 0:
        return w, {"accumulator": accumulator, "linear": linear}
    total = accumulator + g**2
    sigma = (total**power - accumulator**power) / lr
    linear = linear + g + 2 * numbers["l2_shrinkage"] * w - sigma * w
    beyond = np.sign(linear) * np.maximum(np.abs(linear) - numbers["l1"], 0)
    quadratic = total**power / lr + 2 * (numbers["l2"] + numbers["beta"] / (2 * lr))
    return divided(-beyond, quadratic), {"accumulator": total, "linear": linear}


def _sgd(w, g, numbers):
    return w - numbers["lr"] * g, {}


def _momentum(w, g, momentum, numbers):
    m = numbers["momentum"] * momentum - numbers["lr"] * g
    return w + m, {"momentum": m}


def _nesterov(w, g, momentum, numbers):
    m = numbers["momentum"] * momentum - numbers["lr"] * g
    return w + numbers["momentum"] * m - numbers["lr"] * g, {"momentum": m}


def _gradient_momentum(w, g, momentum, numbers):
    m = numbers["momentum"] * momentum + g
    return w - numbers["lr"] * m, {"momentum": m}


def _gradient_nesterov(w, g, momentum, numbers):
    m = numbers["momentum"] * momentum + g
    return w - numbers["lr"] * (g + numbers["momentum"] * m), {"momentum": m}


def _lion(w, g, momentum, numbers):
    m = numbers["momentum"] * momentum + (1 - numbers["momentum"]) * g
    return w - numbers["lr"] * np.sign(m), {"momentum": m}


_RULES: dict[str, Any] = {
    "adagrad": _adagrad,
    "ftrl": _ftrl,
    "gradient_momentum": _gradient_momentum,
    "gradient_nesterov": _gradient_nesterov,
    "lion": _lion,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "rowwise_adagrad": _rowwise_adagrad,
    "sgd": _sgd,
}
