"""Small gradients for one task travel together, and come out as they went in."""

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.sync import gradient_transfers


def test_small_gradients_come_out_as_they_went_in():
    gradients = [
        tf.constant([[1.0, 2.0], [3.0, 4.0]]),
        tf.constant(5.0),
        tf.constant([6.0, 7.0], tf.float64),
        tf.zeros([0]),
        tf.IndexedSlices(tf.constant([[8.0]]), tf.constant([0]), tf.constant([1, 1])),
        tf.constant([9.0]),
        tf.ones([1 << 15]),
    ]
    with tf.device("/device:CPU:0"):
        sent = gradient_transfers.join_small(
            gradients, ["/device:CPU:0"] * 5 + [""] + ["/device:CPU:0"]
        )
    for i in (0, 1, 3):
        assert sent[i] is not gradients[i]
        np.testing.assert_array_equal(sent[i], gradients[i])
    # The only one of its dtype, a sparse one, one for nowhere, a large one.
    for i in (2, 4, 5, 6):
        assert sent[i] is gradients[i]


def test_gradients_that_have_arrived_are_not_sent_again():
    gradients = [tf.constant([float(i)]) for i in range(4)]
    arrived = {1: tf.constant([10.0]), 3: tf.constant([30.0])}
    sent = gradient_transfers.join_small(gradients, ["/device:CPU:0"] * 4, arrived)
    assert (sent[1], sent[3]) == (arrived[1], arrived[3])
    assert [float(one[0]) for one in sent] == [0.0, 10.0, 2.0, 30.0]
    # The other two still go as one.
    assert sent[0] is not gradients[0]
    assert sent[2] is not gradients[2]


HERE = "/job:ps/task:1/device:CPU:0"
SMALL = tf.TensorSpec([1 << 14], tf.float32)  # 64 KB, the most there may be.


def _chosen(*gradients_and_devices):
    gradients, devices = zip(*gradients_and_devices, strict=True)
    return gradient_transfers.choose_for_message(gradients, devices, HERE)


def test_small_dense_gradients_for_the_task_go_along_with_a_message():
    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))
    assert _chosen(
        (slices, HERE),
        (tf.TensorSpec([], tf.float16), "/job:ps/task:1"),
        (SMALL, "/job:ps/task:0"),
        (SMALL, HERE),
        (tf.TensorSpec([(1 << 14) + 1], tf.float32), HERE),
        (tf.TensorSpec([1 << 13], tf.float64), "/job:ps/replica:0/task:1/cpu:0"),
        (tf.TensorSpec([(1 << 13) + 1], tf.float64), HERE),
        (tf.TensorSpec([None], tf.float32), HERE),
        (tf.TensorSpec(None, tf.float32), HERE),
        (SMALL, ""),
    ) == [1, 3, 5]


def test_one_gradient_goes_along_too():
    assert _chosen((SMALL, HERE), (SMALL, "/job:ps/task:0")) == [0]


def test_gradients_that_are_too_much_together_do_not_go_along():
    assert _chosen(*[(SMALL, HERE)] * 4) == [0, 1, 2, 3]
    assert _chosen(*[(SMALL, HERE)] * 4, (tf.TensorSpec([], tf.float16), HERE)) == []


@pytest.mark.parametrize("device", ["", "/device:CPU:0", "/job:ps"])
def test_nothing_goes_along_to_a_task_that_is_not_known(device):
    assert gradient_transfers.choose_for_message([SMALL], [device], device) == []
