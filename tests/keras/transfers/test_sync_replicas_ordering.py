"""The order of an update's ops, in graphs of functions that do not run."""

import pytest
import tensorflow as tf
from transfers_graph import SERVERS, assign, variable

from tf_syncrep.python.keras.sync_replicas.cluster import ordering
from tf_syncrep.python.ops import accumulator_ops


def take(server, shape):
    """Takes a gradient from an accumulator, as an update does."""
    with tf.device(SERVERS[server] + "/device:CPU:0"):
        handle = accumulator_ops.dense_accumulator(tf.float32, shape, mode="ROUND")
        return accumulator_ops.accumulator_take_round_dense(
            handle, tf.constant(0, tf.int64), tf.constant(1, tf.int64), tf.float32
        )


def before(op):
    return {x.name for x in op.control_inputs}


def test_ops_wait_for_those_of_their_own_task_and_else_for_the_round():
    with tf.Graph().as_default() as graph:
        round_number = tf.constant(3, name="round")
        earlier = [take(0, [2]).op, take(0, [3]).op, take(1, [2]).op]
        num_before = len(graph.get_operations())
        handles = [variable(0), variable(1)]
        with tf.device("/job:ps/replica:0/task:2"):
            handles.append(tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(3,)))
        for handle in handles:
            assign(handle, tf.zeros([3]))
        built = graph.get_operations()[num_before:]
        ordering.use_resources_after(built, earlier, round_number.op)
    assigns = [op for op in built if op.type == "AssignVariableOp"]
    assert [before(op) for op in assigns] == [
        {earlier[0].name, earlier[1].name},
        {earlier[2].name},
        {"round"},
    ]
    others = [op for op in built if op not in assigns]
    assert not any(before(op) for op in others)


@pytest.mark.parametrize("is_sparse", [True, False])
def test_the_smallest_dense_gradient_of_each_task_is_chosen(is_sparse):
    with tf.Graph().as_default():
        gradients = [take(0, [3]), take(0, [2]), take(1, [5])]
        for gradient, shape in zip(gradients, ([3], [2], [5]), strict=True):
            gradient.set_shape(shape)
        chosen = [gradients[1].op, gradients[2].op]
        if is_sparse:
            indices = tf.constant([0])
            gradients[1] = tf.IndexedSlices(gradients[1], indices)
            gradients[2] = tf.IndexedSlices(gradients[2], indices)
            chosen[0] = gradients[0].op
        found = ordering.one_of_each_task(gradients)
        assert {x.name for x in found} == {x.name for x in chosen}
