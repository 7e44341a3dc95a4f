"""Hops that wait for one another are counted, and no others."""

import hops
import pytest
import tensorflow as tf

FIRST, SECOND = "/job:ps/task:0", "/job:ps/replica:0/task:1/device:CPU:0"


def add(x, device):
    with tf.device(device):
        return x + 1


def effect_that_nothing_waits_for(x):
    with tf.device(FIRST):
        tf.print(x)
    return x


def control_dependency(x):
    with tf.control_dependencies([add(x, FIRST)]):
        return add(x, SECOND)


def branch(x):
    return tf.cond(add(x, FIRST) > 0, lambda: add(x, SECOND), lambda: x)


inner = tf.function(lambda x: add(x, SECOND))


@pytest.mark.parametrize(
    ("function", "number"),
    [
        pytest.param(lambda x: x + 1, 0, id="at_home"),
        pytest.param(lambda x: add(x, FIRST) + 1, 2, id="there_and_back"),
        pytest.param(lambda x: add(x, FIRST) + add(x, SECOND), 2, id="side_by_side"),
        pytest.param(lambda x: add(add(x, FIRST), SECOND), 3, id="server_to_server"),
        pytest.param(
            lambda x: add(add(x, FIRST) + 1, SECOND), 4, id="one_after_the_other"
        ),
        pytest.param(lambda x: inner(add(x, FIRST) + 1), 4, id="in_a_function"),
        # It has to end all the same.
        (effect_that_nothing_waits_for, 2),
        (control_dependency, 3),
        # It waits for its condition.
        (branch, 4),
    ],
)
def test_hops_are_counted(function, number):
    concrete = tf.function(function).get_concrete_function(tf.TensorSpec([]))
    assert hops.count(concrete) == number
