"""AdamAsync in plain float64 NumPy, with which the kernels are compared.

Each function takes the state before an update and returns the state after it, as new
float64 arrays; the inputs do not change. The loops are written to be read, one row at a
time, not to be fast.

The formulas are Adam's (Kingma and Ba, "Adam: A Method for Stochastic
Optimization", 2015), in the form at the end of section 2 of the paper, with one
pair of powers for each variable.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rule_reference import divided


class State(NamedTuple):
    """A variable and its slots."""

    var: np.ndarray
    m: np.ndarray
    v: np.ndarray
    beta1_power: np.ndarray
    beta2_power: np.ndarray


def initial_state(var: Any, beta1: float, beta2: float) -> State:
    """Returns the state of a variable that no update has touched yet."""
    var = _float64(var)
    return State(
        var,
        np.zeros_like(var),
        np.zeros_like(var),
        np.array(beta1, np.float64),
        np.array(beta2, np.float64),
    )


def adam_async_dense(
    var: Any,
    m: Any,
    v: Any,
    beta1_power: Any,
    beta2_power: Any,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Any,
    use_nesterov: bool = False,
) -> State:
    """One dense update: every element moves and the powers advance."""
    var, m, v = _float64(var), _float64(m), _float64(v)
    beta1_power, beta2_power = _float64(beta1_power), _float64(beta2_power)
    grad = _float64(grad)
    alpha = _step_size(lr, beta1_power, beta2_power)
    var, m, v = _adam(var, m, v, alpha, beta1, beta2, epsilon, grad, use_nesterov)
    return State(var, m, v, beta1_power * beta1, beta2_power * beta2)


def adam_async_sparse(
    var: Any,
    m: Any,
    v: Any,
    beta1_power: Any,
    beta2_power: Any,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Any,
    indices: Sequence[int] | np.ndarray,
    use_nesterov: bool = False,
    apply_sparse_rmsprop: bool = False,
    rmsprop_momentum: float = -1.0,
) -> State:
    """One sparse update: only the rows named by `indices` move.

    Rows that occur several times are summed first and moved once. The powers
    advance once, or not at all when there are no indices or for RMSProp.
    """
    var, m, v = _float64(var), _float64(m), _float64(v)
    beta1_power, beta2_power = _float64(beta1_power), _float64(beta2_power)
    row_gradients = _sum_by_row(_float64(grad), indices)
    momentum = beta1 if rmsprop_momentum < 0 else rmsprop_momentum

    if apply_sparse_rmsprop:
        for row, g in row_gradients.items():
            v[row] = beta2 * v[row] + (1 - beta2) * g * g
            m[row] = momentum * m[row] + divided(lr * g, np.sqrt(v[row] + epsilon))
            var[row] = var[row] - m[row]
        return State(var, m, v, beta1_power, beta2_power)

    if not row_gradients:
        return State(var, m, v, beta1_power, beta2_power)

    alpha = _step_size(lr, beta1_power, beta2_power)
    for row, g in row_gradients.items():
        var[row], m[row], v[row] = _adam(
            var[row], m[row], v[row], alpha, beta1, beta2, epsilon, g, use_nesterov
        )
    return State(var, m, v, beta1_power * beta1, beta2_power * beta2)


def _float64(x: Any) -> np.ndarray:
    """Returns a float64 copy of `x`."""
    return np.array(x, dtype=np.float64)


def _step_size(lr: float, beta1_power: np.ndarray, beta2_power: np.ndarray) -> float:
    """Returns the learning rate with both bias corrections of the step to come."""
    return lr * np.sqrt(1 - beta2_power.item()) / (1 - beta1_power.item())


def _adam(var, m, v, alpha, beta1, beta2, epsilon, g, use_nesterov):
    """Computes the rule, element by element: returns the new var, m and v."""
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    direction = beta1 * m + (1 - beta1) * g if use_nesterov else m
    return var - divided(alpha * direction, np.sqrt(v) + epsilon), m, v


def _sum_by_row(grad: np.ndarray, indices: Any) -> dict[int, np.ndarray]:
    """Returns the gradient of each row, duplicates summed in order of occurrence."""
    total: dict[int, np.ndarray] = {}
    for position, row in enumerate(np.asarray(indices).tolist()):
        if row in total:
            total[row] = total[row] + grad[position]
        else:
            total[row] = grad[position]
    return total
