"""The hyper-parameters of all contenders, and the check against the float64 twin."""

from __future__ import annotations

from collections.abc import Sequence

import adam_async_reference as reference
import numpy as np

from .gradients import Gradient
from .timing import Contender

LEARNING_RATE = 1e-3
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-7
_HYPER = (LEARNING_RATE, BETA1, BETA2, EPSILON)

# A step is about LEARNING_RATE long; a wrong power or a row left out is off by more
# than a hundredth of it, float32 arithmetic by much less.
_TOLERANCE = 1e-3 * LEARNING_RATE
_COMPARED = 100_000


def step_size(step: int) -> float:
    """The learning rate with both bias corrections; the first step is 1."""
    return LEARNING_RATE * (1 - BETA2**step) ** 0.5 / (1 - BETA1**step)


def check(
    contender: Contender,
    variables: Sequence[np.ndarray],
    batches: Sequence[Sequence[Gradient]],
    steps: int = 3,
) -> None:
    """Makes the first steps of a contender and compares the variables with the twin.

    `contender`: the contender, which has not made a step yet. Raises AssertionError: if
    a variable is wrong.
    """
    for i in range(steps):
        contender.step(i)
    check_after(contender, variables, batches, steps)


def check_after(
    contender: Contender,
    variables: Sequence[np.ndarray],
    batches: Sequence[Sequence[Gradient]],
    steps: int,
) -> None:
    """Does the same for a contender that has made these steps, and no others."""
    used = [batches[i % len(batches)] for i in range(steps)]
    for k, (initial, actual) in enumerate(
        zip(variables, contender.read(), strict=True)
    ):
        gradients = [batch[k] for batch in used]
        compare = _check_dense if gradients[0].indices is None else _check_sparse
        compare(contender.name, initial, np.asarray(actual), gradients)


def _check_dense(name, initial, actual, gradients):
    assert actual.shape == initial.shape, name
    picked = np.unique(np.linspace(0, initial.size - 1, _COMPARED).astype(np.int64))
    state = reference.initial_state(initial.reshape(-1)[picked], BETA1, BETA2)
    for gradient in gradients:
        values = gradient.values.reshape(-1)[picked]
        state = reference.adam_async_dense(*state, *_HYPER, values)
    np.testing.assert_allclose(
        actual.reshape(-1)[picked], state.var, rtol=0, atol=_TOLERANCE, err_msg=name
    )


def _check_sparse(name, initial, actual, gradients):
    assert actual.shape == initial.shape, name
    rows = np.unique(np.concatenate([g.indices for g in gradients]))
    state = reference.initial_state(initial[rows], BETA1, BETA2)
    for gradient in gradients:
        positions = np.searchsorted(rows, gradient.indices)
        state = reference.adam_async_sparse(*state, *_HYPER, gradient.values, positions)
    # Among many millions of sums a few are almost zero, so that float32 hardly knows
    # their sign: one in a million may be off by a part of a step.
    errors = np.sort(np.abs(actual[rows] - state.var), axis=None)
    assert errors[-1 - errors.size // 1_000_000] <= _TOLERANCE, (name, errors[-10:])
    assert errors[-1] <= LEARNING_RATE, (name, errors[-10:])
    others = np.ones(len(initial), bool)
    others[rows] = False
    assert np.array_equal(actual[others], initial[others]), f"{name} moved other rows"
