"""Small gradients for one task are sent together, and arrive unchanged."""

import numpy as np
import pytest
import tensorflow as tf

from tf_syncrep.python.v1.sync_replicas import gradient_transfers

pytestmark = pytest.mark.eager


def _slices(num_indices, columns, dtype=tf.float32):
    """A gradient of some rows, whose number is not known beforehand."""
    return tf.IndexedSlices(
        tf.TensorSpec([None, columns], dtype), tf.TensorSpec([num_indices], tf.int64)
    )


LONG = _slices(None, 16)  # 64 bytes, the least that counts as long


# The device of eager tensors. In a function the devices of tensors are not known.
LOCAL = "/job:localhost/replica:0/task:0/device:CPU:0"


def test_small_parts_come_out_as_they_went_in():
    shape = tf.constant([2, 1])
    gradients = [
        tf.constant([[1.0, 2.0], [3.0, 4.0]]),
        tf.constant(5.0),
        tf.constant([6.0, 7.0], tf.float64),
        tf.zeros([0]),
        tf.IndexedSlices(tf.constant([[8.0]]), tf.constant([1]), shape),
        tf.constant([9.0]),
        tf.ones([1 << 15]),
        tf.IndexedSlices(tf.zeros([0, 1]), tf.zeros([0], tf.int64), shape),
        tf.constant([10.0]),
    ]
    devices = [LOCAL] * 5 + [""] + [LOCAL] * 2 + ["/device:CPU:0"]

    @tf.function
    def there(gradients):
        sent = gradient_transfers.join_small(gradients, devices)
        for i in (0, 1, 2, 3):
            assert sent[i] is not gradients[i]
        for i in (4, 7):
            assert sent[i].indices is not gradients[i].indices
            assert sent[i].values is gradients[i].values
            assert sent[i].dense_shape is gradients[i].dense_shape
        # One has no device, one is large, and one is for an unknown task.
        for i in (5, 6, 8):
            assert sent[i] is gradients[i]
        return sent

    for received, gradient in zip(there(gradients), gradients, strict=True):
        for actual, expected in zip(
            tf.nest.flatten(received, expand_composites=True),
            tf.nest.flatten(gradient, expand_composites=True),
            strict=True,
        ):
            assert actual.dtype == expected.dtype
            np.testing.assert_array_equal(actual, expected)


def test_parts_that_have_arrived_are_not_sent_again():
    @tf.function
    def there(gradients, arrived):
        sent = gradient_transfers.join_small(gradients, [LOCAL] * 4, arrived)
        assert sent[1] is arrived[1]
        assert sent[3].indices is arrived[3]
        assert sent[3].values is gradients[3].values
        # The other two are still sent as one.
        assert sent[0] is not gradients[0]
        assert sent[2] is not gradients[2]
        return sent[:3]

    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))
    gradients = [*(tf.constant([float(i)]) for i in range(3)), slices]
    sent = there(gradients, {1: tf.constant([10.0]), 3: tf.constant([5])})
    assert [float(one[0]) for one in sent] == [0.0, 10.0, 2.0]


HERE = "/job:ps/task:1/device:CPU:0"
SMALL = tf.TensorSpec([1 << 14], tf.float32)  # 64 KB, the most that counts as small


def _chosen(*gradients_and_devices, device=HERE, replica="/job:worker/task:0"):
    gradients, devices = zip(*gradients_and_devices, strict=True)
    with tf.Graph().as_default(), tf.device(replica):
        gradients = [_on_replica(gradient) for gradient in gradients]
    return gradient_transfers.choose_for_message(gradients, devices, device)


def _on_replica(gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            _on_replica(gradient.values), _on_replica(gradient.indices)
        )
    return tf.compat.v1.placeholder(gradient.dtype, gradient.shape)


def test_small_parts_for_the_task_go_along_with_a_message():
    assert _chosen(
        (_slices(None, 1), HERE),
        (tf.TensorSpec([], tf.float16), "/job:ps/task:1"),
        (SMALL, "/job:ps/task:0"),
        (SMALL, HERE),
        (tf.TensorSpec([(1 << 14) + 1], tf.float32), HERE),
        (tf.TensorSpec([1 << 13], tf.float64), "/job:ps/replica:0/task:1/cpu:0"),
        (tf.TensorSpec([(1 << 13) + 1], tf.float64), HERE),
        (tf.TensorSpec([None], tf.float32), HERE),
        (tf.TensorSpec(None, tf.float32), HERE),
        (LONG, HERE),
        (LONG, "/job:ps/task:0"),
        (SMALL, ""),
    ) == [1, 3, 5, 9]


def test_gradients_that_are_too_much_together_do_not_go_along():
    assert _chosen(*[(SMALL, HERE)] * 4) == [0, 1, 2, 3]
    assert _chosen(*[(SMALL, HERE)] * 4, (tf.TensorSpec([], tf.float16), HERE)) == []
    # They are sent separately, with their indices.
    assert _chosen(*[(SMALL, HERE)] * 5, (LONG, HERE)) == []
    short = _slices(1 << 13, 1)
    assert _chosen(*[(short, HERE)] * 4) == [0, 1, 2, 3]
    assert _chosen(*[(short, HERE)] * 5) == []


def test_indices_of_long_rows_go_along_however_many_there_are():
    for slices in (LONG, _slices(1 << 20, 32, tf.float16)):
        assert _chosen(*[(SMALL, HERE)] * 4, (slices, HERE)) == [0, 1, 2, 3, 4]
    assert _chosen(*[(LONG, HERE)] * 20) == list(range(20))


def test_what_is_there_already_does_not_go_along():
    assert _chosen((SMALL, HERE), (LONG, HERE), replica="/job:ps/task:1") == []


def test_nothing_goes_along_to_a_task_that_is_not_known():
    for device in ("", "/device:CPU:0", "/job:ps"):
        assert _chosen((SMALL, device), device=device) == []
