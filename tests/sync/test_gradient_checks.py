"""The checks of a gradient against its variable, alone."""

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.sync import gradient_checks


class _Variable:
    """The attributes of a variable that the checks use."""

    name = "v:0"

    def __init__(self, shape):
        self.shape = tf.TensorShape(shape)


def _check(gradient, shape):
    """Runs the check in a function that knows no static shapes."""

    @tf.function(autograph=False)
    def checked(*parts):
        one = tf.IndexedSlices(*parts) if len(parts) == 2 else parts[0]
        with tf.control_dependencies(
            [gradient_checks.check_against(one, _Variable(shape))]
        ):
            return tf.constant(True)

    parts = gradient if isinstance(gradient, tuple) else (gradient,)
    parts = [tf.convert_to_tensor(part) for part in parts]
    signature = [tf.TensorSpec(None, part.dtype) for part in parts]
    return bool(checked.get_concrete_function(*signature)(*parts))


def _ones(*shape):
    return np.ones(shape, np.float32)


# With values alone, or with indices.
@pytest.mark.parametrize(
    ("values", "indices", "shape"),
    [
        (_ones(2, 3), None, [2, 3]),
        (_ones(), None, []),
        (_ones(0), None, [0]),
        (_ones(3, 4), [0, 1, 1], [2, 4]),
        (_ones(2), [4, 0], [5]),
        (_ones(0, 4), [], [2, 4]),
        # There are more rows than the indices' dtype can count.
        (_ones(1, 1), [7], [2**31 + 8, 1]),
        # An unknown shape is not checked.
        (_ones(2, 3), None, [None, 2]),
    ],
)
def test_gradient_that_fits_passes(values, indices, shape):
    if indices is None:
        assert _check(values, shape)
    else:
        for dtype in (np.int32, np.int64):
            assert _check((values, np.array(indices, dtype)), shape)


@pytest.mark.parametrize(
    ("values", "indices", "shape", "rule"),
    [
        (_ones(2, 3), None, [3, 2], "shape"),
        (_ones(2), None, [2, 1], "shape"),
        (_ones(), None, [1], "shape"),
        (_ones(1, 4), [2], [2, 4], "indices in"),
        (_ones(1, 4), [-1], [2, 4], "indices in"),
        (_ones(1, 4), [0], [0, 4], "indices in"),
        (_ones(2, 4), [0], [2, 4], "values of shape"),
        (_ones(1, 3), [0], [2, 4], "values of shape"),
        (_ones(1), [0], [2, 4], "values of shape"),
    ],
)
def test_gradient_that_does_not_fit_is_named(values, indices, shape, rule):
    gradient = values if indices is None else (values, np.array(indices, np.int64))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"The gradient of v:0 must have {rule}"
    ):
        _check(gradient, shape)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_one_number_that_is_not_finite_is_found_anywhere(dtype):
    numbers = np.ones(9)
    fine = tf.constant([float(dtype.max), -0.0], dtype)
    assert gradient_checks.all_finite([fine, tf.IndexedSlices(fine, [0, 1])])
    for bad in (np.nan, np.inf, -np.inf):
        numbers[4] = bad
        other = tf.constant(numbers, dtype)
        for gradient in (other, tf.IndexedSlices(other, tf.range(9))):
            assert not gradient_checks.all_finite([fine, gradient])
