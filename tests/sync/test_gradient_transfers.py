"""Small gradients for one task travel together, and come out as they went in."""

import numpy as np
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
