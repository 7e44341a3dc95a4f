"""A sparse AdamAsync step gives the same bits, also on many threads."""

import adam_async_steps as steps
import numpy as np
import programs
import pytest
import tensorflow as tf

# Prints a digest of the state after steps on variables large enough for many threads.
_DIGESTS = """
import hashlib
import sys

import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))

import adam_async_steps as steps

random = np.random.default_rng(0)
for dtype in steps.DTYPES:
    state = steps.random_state(1, [10000, 33], dtype)
    indices = (random.zipf(1.2, size=15000) - 1) % 10000
    grad = (random.standard_normal([15000, 33]) / 64).astype(dtype.as_numpy_dtype)
    dense_grad = random.standard_normal([10000, 33]).astype(dtype.as_numpy_dtype)
    for options in ({}, {"use_nesterov": True}, {"apply_sparse_rmsprop": True}):
        with tf.device("CPU:0"):
            after = steps.step("eager", state, grad, indices, **options)
        print(hashlib.sha256(b"".join(x.tobytes() for x in after)).hexdigest())
    with tf.device("CPU:0"):
        after = steps.step("eager", state, dense_grad)
    print(hashlib.sha256(b"".join(x.tobytes() for x in after)).hexdigest())
"""


def _digests(threads):
    finished = programs.run_source(_DIGESTS, str(threads))
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


def test_the_number_of_threads_changes_no_bit():
    alone = _digests(1)
    assert len(alone) == 4 * len(steps.DTYPES)
    assert len(set(alone)) == len(alone)
    assert _digests(4) == alone


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", steps.DTYPES, ids=lambda dtype: dtype.name)
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


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", steps.DTYPES, ids=lambda dtype: dtype.name)
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
