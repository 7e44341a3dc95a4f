"""The checks of a gradient against its variable, by themselves."""

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.sync import gradient_checks


class _Variable:
    """As much of a variable as the checks look at."""

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


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("gradient", "shape"),
    [
        (_ones(2, 3), [2, 3]),
        (_ones(), []),
        (_ones(0), [0]),
        ((_ones(3, 4), [0, 1, 1]), [2, 4]),
        ((_ones(2), [4, 0]), [5]),
        ((_ones(0, 4), []), [2, 4]),
    ],
)
def test_gradient_that_fits_passes(gradient, shape, index_dtype):
    if isinstance(gradient, tuple):
        gradient = (gradient[0], np.array(gradient[1], index_dtype))
    assert _check(gradient, shape)


@pytest.mark.parametrize(
    ("gradient", "shape", "rule"),
    [
        (_ones(2, 3), [3, 2], "must have shape"),
        (_ones(2), [2, 1], "must have shape"),
        (_ones(), [1], "must have shape"),
        ((_ones(1, 4), [2]), [2, 4], "must have indices in"),
        ((_ones(1, 4), [-1]), [2, 4], "must have indices in"),
        ((_ones(1, 4), [0]), [0, 4], "must have indices in"),
        ((_ones(2, 4), [0]), [2, 4], "must have values of shape"),
        ((_ones(1, 3), [0]), [2, 4], "must have values of shape"),
        ((_ones(1), [0]), [2, 4], "must have values of shape"),
    ],
)
def test_gradient_that_does_not_fit_is_named(gradient, shape, rule):
    if isinstance(gradient, tuple):
        gradient = (gradient[0], np.array(gradient[1], np.int64))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"The gradient of v:0 {rule}"
    ):
        _check(gradient, shape)


def test_indices_are_checked_against_more_rows_than_their_dtype_can_count():
    assert _check((_ones(1, 1), np.array([7], np.int32)), [2**31 + 8, 1])


def test_variable_of_unknown_shape_is_not_looked_at():
    assert _check(_ones(2, 3), [None, 2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_one_number_that_is_not_finite_is_found_anywhere(bad, place, dtype):
    numbers = np.ones(9)
    fine = tf.constant(numbers, dtype)
    numbers[4] = bad
    other = tf.constant(numbers, dtype)
    gradients = {
        "dense": [fine, other],
        "sparse": [fine, tf.IndexedSlices(other, tf.range(9))],
    }[place]
    assert not gradient_checks.all_finite(gradients)


def test_finite_gradients_are_finite():
    largest = tf.constant([np.finfo(np.float32).max, -0.0])
    assert gradient_checks.all_finite([largest, tf.IndexedSlices(largest, [0, 1])])
