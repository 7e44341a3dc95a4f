"""The float64 NumPy twin itself, compared with values worked out by hand.

With beta1 = beta2 = 0.5, lr = 1 and epsilon = 0 every number below is short:

  t = 1, g = 2:  alpha = sqrt(1 - 0.5) / (1 - 0.5) = sqrt(2)
                 m = 0.5 * 2 = 1,  v = 0.5 * 4 = 2,  step = sqrt(2) * 1 / sqrt(2) = 1
  t = 2, g = 2:  alpha = sqrt(1 - 0.25) / (1 - 0.25) = sqrt(4 / 3)
                 m = 0.5 + 1 = 1.5,  v = 1 + 2 = 3
                 step = sqrt(4 / 3) * 1.5 / sqrt(3) = 1
"""

import adam_async_reference as reference
import numpy as np
import pytest

HALVES = {"lr": 1.0, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.0}


def test_dense_steps_have_hand_computed_values():
    state = reference.initial_state([10.0], 0.5, 0.5)

    state = reference.adam_async_dense(*state, **HALVES, grad=[2.0])
    np.testing.assert_allclose(state.m, [1.0])
    np.testing.assert_allclose(state.v, [2.0])
    np.testing.assert_allclose(state.var, [9.0])
    assert (state.beta1_power, state.beta2_power) == (0.25, 0.25)

    state = reference.adam_async_dense(*state, **HALVES, grad=[2.0])
    np.testing.assert_allclose(state.m, [1.5])
    np.testing.assert_allclose(state.v, [3.0])
    np.testing.assert_allclose(state.var, [8.0])
    assert (state.beta1_power, state.beta2_power) == (0.125, 0.125)


def test_nesterov_looks_one_gradient_ahead():
    state = reference.initial_state([10.0], 0.5, 0.5)
    state = reference.adam_async_dense(*state, **HALVES, grad=[2.0], use_nesterov=True)
    # The direction is 0.5 * m + 0.5 * g = 1.5 where plain Adam has m = 1.
    np.testing.assert_allclose(state.var, [8.5])
    np.testing.assert_allclose(state.m, [1.0])


def test_epsilon_is_added_outside_of_the_root():
    state = reference.initial_state([0.0], 0.5, 0.5)
    state = reference.adam_async_dense(
        *state, lr=1.0, beta1=0.5, beta2=0.5, epsilon=np.sqrt(2.0), grad=[2.0]
    )
    np.testing.assert_allclose(state.var, [-0.5])


def test_sparse_sums_duplicates_and_leaves_other_rows_alone():
    state = reference.initial_state([[10.0], [20.0], [30.0]], 0.5, 0.5)
    state = reference.adam_async_sparse(
        *state, **HALVES, grad=[[0.5], [-7.0], [1.5]], indices=[2, 0, 2]
    )
    # Row 2 sees one gradient of 2, row 0 one of -7, row 1 nothing.
    np.testing.assert_allclose(state.var, [[11.0], [20.0], [29.0]])
    np.testing.assert_allclose(state.m, [[-3.5], [0.0], [1.0]])
    np.testing.assert_allclose(state.v, [[24.5], [0.0], [2.0]])
    assert (state.beta1_power, state.beta2_power) == (0.25, 0.25)


def test_no_indices_change_nothing():
    before = reference.initial_state([[10.0], [20.0]], 0.5, 0.5)
    after = reference.adam_async_sparse(
        *before, **HALVES, grad=np.zeros((0, 1)), indices=np.zeros(0, np.int32)
    )
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("momentum", "first", "second"),
    # v is 2 and then 3 in every case; a step without momentum is lr * g / sqrt(v).
    [
        (0.0, 2 / np.sqrt(2), 2 / np.sqrt(3)),
        (-1.0, 2 / np.sqrt(2), 0.5 * 2 / np.sqrt(2) + 2 / np.sqrt(3)),
        (0.75, 2 / np.sqrt(2), 0.75 * 2 / np.sqrt(2) + 2 / np.sqrt(3)),
    ],
)
def test_rmsprop_has_hand_computed_values(momentum, first, second):
    state = reference.initial_state([[10.0]], 0.5, 0.5)
    for step in (first, second):
        before = state
        state = reference.adam_async_sparse(
            *before,
            **HALVES,
            grad=[[2.0]],
            indices=[0],
            apply_sparse_rmsprop=True,
            rmsprop_momentum=momentum,
        )
        np.testing.assert_allclose(state.m, [[step]])
        np.testing.assert_allclose(state.var, before.var - step)
        assert (state.beta1_power, state.beta2_power) == (0.5, 0.5)


def test_inputs_stay_as_they_are():
    before = reference.initial_state([[1.0, 2.0], [3.0, 4.0]], 0.9, 0.999)
    copies = [array.copy() for array in before]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    reference.adam_async_dense(*before, **options, grad=np.ones((2, 2)))
    reference.adam_async_sparse(*before, **options, grad=np.ones((1, 2)), indices=[1])
    for array, copy in zip(before, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
