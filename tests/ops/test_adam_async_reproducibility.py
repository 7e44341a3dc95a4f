"""A sparse AdamAsync step gives the same bits, whatever the order of different rows.

tests/cc/apply_rule_test.cc shows that the number of threads changes no bit.
"""

import adam_async_steps as steps
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("device")

each_dtype = pytest.mark.parametrize(
    "dtype", steps.DTYPES, ids=lambda dtype: dtype.name
)


@each_dtype
def test_the_order_of_different_rows_changes_no_bit(dtype):
    """The occurrences of each row must stay in their order."""
    rows = 500
    state = steps.random_state(2, [rows, 7], dtype)
    random = np.random.default_rng(20)
    indices = (random.zipf(1.3, size=2000) - 1) % rows
    grad = steps.random_array(21, [2000, 7], dtype)
    in_row_order = np.argsort(indices, kind="stable")
    steps.assert_identical(
        steps.step("eager", state, grad[in_row_order], indices[in_row_order]),
        steps.step("eager", state, grad, indices),
    )


@each_dtype
def test_duplicates_are_summed_in_order_of_occurrence(dtype):
    slot = steps.slot_dtype(dtype)
    state = steps.random_state(3, [8, 7], slot)
    state = state._replace(var=state.var.astype(dtype.as_numpy_dtype))
    grad = (steps.random_array(30, [300, 7], tf.float64) ** 5).astype(
        dtype.as_numpy_dtype
    )
    indices = np.random.default_rng(31).integers(0, 2, 300) * 5
    actual = steps.step("eager", state, grad, indices, beta1=0.0)

    sums = np.zeros([2, 7], slot.as_numpy_dtype)
    for row, row_grad in zip(indices // 5, grad, strict=True):
        sums[row] += row_grad.astype(sums.dtype)
    # With beta1 = 0 the first moment is the sum itself.
    np.testing.assert_array_equal(actual.m[[0, 5]], sums)
