"""AdamAsync's ops that round: the ops with DeepRec's names keep DeepRec's inputs."""

import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.ops import adam_async_ops

STEPS = {
    "dense": (
        tfs.ops.resource_apply_adam_async,
        adam_async_ops.resource_apply_adam_async_rounded,
        (),
    ),
    "sparse": (
        tfs.ops.resource_sparse_apply_adam_async,
        adam_async_ops.resource_sparse_apply_adam_async_rounded,
        (tf.constant([2, 0, 2, 1, 3, 5]),),
    ),
}


@pytest.mark.parametrize("kind", STEPS)
def test_the_op_with_a_count_moves_the_same_slots_and_rounds_otherwise(kind):
    step, rounded, indices = STEPS[kind]
    results = []
    numbers = [tf.constant(x) for x in (0.001, 0.9, 0.999, 1e-7)]
    grad = tf.ones([6, 50], tf.bfloat16)
    for takes_count in (False, True):
        var = tf.Variable(tf.ones([6, 50], tf.bfloat16))
        slots = [tf.Variable(tf.zeros([6, 50])) for _ in range(2)]
        slots += [tf.Variable([0.9]), tf.Variable([0.999])]
        handles = [x.handle for x in (var, *slots)]
        if takes_count:
            rounding = tfs.ops.StochasticRounding(tf.Variable([0], dtype=tf.int64))
            rounded(rounding, *handles, *numbers, grad, *indices)
            assert rounding.count.numpy() == [-1]
        else:
            step(*handles, *numbers, grad, *indices)
        results.append((var.numpy(), [x.numpy() for x in slots]))
    (nearest, slots), (other, other_slots) = results
    for one, two in zip(slots, other_slots, strict=True):
        np.testing.assert_array_equal(one, two)
    assert (nearest == 1).all()
    assert len(np.unique(other)) == 2
