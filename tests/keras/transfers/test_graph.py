"""Graphs of functions that do not run: their messages, and the order of an update."""

import pytest
import tensorflow as tf
from transfers_graph import BOTH_WAYS, DEVICE, SERVERS, assign, read, sent, variable

import tf_syncrep as tfs
from tf_syncrep.python.keras.sync_replicas.cluster import ordering
from tf_syncrep.python.keras.transfers import packing
from tf_syncrep.python.ops import accumulator_ops


def test_one_tensor_from_each_server_and_one_to_it():
    def build(x):
        handles = [variable(i % 2) for i in range(6)]
        values = [read(handle) for handle in handles]
        for handle in handles:
            assign(handle, tf.add_n([x, *values]) * 2.0)

    assert sent(build) == BOTH_WAYS


def test_what_is_assigned_and_read_again_is_in_another_message():
    def build(x):
        handles = [variable(0), variable(0)]
        for _ in range(3):
            values = [read(handle) for handle in handles]
            for handle in handles:
                assign(handle, tf.add_n([x, *values]))

    assert sent(build) == sorted([(SERVERS[0], ""), ("", SERVERS[0])] * 3)


def test_message_waits_for_a_later_one_where_nothing_needs_it_before():
    def build(x):
        handles = [variable(0) for _ in range(3)]
        assign(handles[0], x + 1.0)
        assign(handles[1], x + read(handles[2]))

    assert sent(build) == [("", SERVERS[0]), (SERVERS[0], "")]


def test_values_for_another_server_go_there_together():
    def build(x):
        del x
        rates, weight = [variable(0), variable(0)], variable(1)
        values = list(map(read, rates))
        with tf.device(weight.device):
            assign(weight, values[0] * values[1])

    assert sent(build) == [(SERVERS[0], SERVERS[1])]


@pytest.mark.parametrize("calls", ["cond", "while_loop", "function"])
def test_what_functions_of_a_step_take_stays_where_it_is_made(calls):
    graphs = []

    def build(x):
        handle = variable(0)
        value = tf.reduce_sum(read(variable(1)) + x)
        if calls == "cond":
            tf.cond(value > 0.0, lambda: assign(handle, x), lambda: None)
        elif calls == "while_loop":
            tf.while_loop(
                lambda i, _: i < 5,
                lambda i, y: (i + 1, y + tf.reduce_sum(read(handle))),
                (tf.constant(0), value),
            )
        else:
            tf.function(lambda y: assign(handle, x + y))(value)
        graphs.append(tf.compat.v1.get_default_graph())

    sent(build)
    (op,) = (
        op
        for op in graphs[0].get_operations()
        if op.type in ("If", "StatefulPartitionedCall", "While")
    )
    of_numbers = [x for x in op.inputs if x.dtype != tf.resource]
    assert of_numbers
    assert {x.op.device for x in of_numbers} <= {"", DEVICE}


def test_small_constants_are_not_sent_unless_they_wait_for_something():
    def build(x):
        counter, other = variable(0, ()), variable(0, ())
        one = tf.cast(tf.constant(1), tf.float32)
        tf.raw_ops.AssignAddVariableOp(resource=counter, value=one)
        with tf.control_dependencies([tf.reduce_sum(x)]):
            waiting = tf.constant(1.0)
        tf.raw_ops.AssignAddVariableOp(resource=other, value=waiting)

    assert sent(build) == [("", SERVERS[0])]


@pytest.mark.parametrize(
    ("shape", "dtype"), [((70_000,), tf.float32), (None, tf.float32), ((), tf.string)]
)
def test_what_is_large_or_not_known_goes_by_itself(shape, dtype):
    def build(x):
        del x
        large = [read(variable(0, shape, dtype), shape, dtype) for _ in range(2)]
        small = [read(variable(0)) for _ in range(2)]
        for value in (*large, *small):
            tf.identity(value)

    assert sent(build) == [(SERVERS[0], "")] * 3


@pytest.mark.parametrize("dtype", [tf.bool, tf.int8, tf.uint8, tf.bfloat16, tf.int64])
def test_all_numbers_go_together(dtype):
    def build(x):
        values = [read(variable(0, dtype=dtype), dtype=dtype) for _ in range(2)]
        assign(variable(0), tf.add_n([x, *(tf.cast(v, tf.float32) for v in values)]))

    assert sent(build) == [("", SERVERS[0]), (SERVERS[0], "")]


def test_inside_of_another_it_does_nothing():
    def build(x):
        for _ in range(2):
            with tfs.keras.few_messages():
                assign(variable(0), x + read(variable(0)))

    assert sent(build) == [("", SERVERS[0]), (SERVERS[0], "")]


def test_after_an_error_the_next_function_is_traced_as_ever():
    def fail(x):
        del x
        raise ValueError("as was to be")

    with pytest.raises(ValueError, match="as was to be"):
        sent(fail)
    test_one_tensor_from_each_server_and_one_to_it()


def test_in_eager_mode_nothing_is_done():
    weight = tf.Variable(1.0)
    with tfs.keras.few_messages():
        weight.assign_add(1.0)
    assert weight.numpy() == 2.0


@pytest.mark.parametrize("dtypes", [[tf.float32], [tf.float32, tf.int64, tf.bool]])
def test_what_is_packed_comes_out_as_it_was(dtypes):
    shapes = [(), (1,), (1, 1), (2, 3), (3, 2), (0, 3), (4,)]
    numbers = iter(range(100))
    given = [
        tf.cast(tf.fill(shape, next(numbers)), dtype)
        for shape in shapes
        for dtype in dtypes
    ]
    for x, y in zip(given, packing.unpack(packing.pack(given), given), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert tf.reduce_all(tf.equal(x, y))


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
