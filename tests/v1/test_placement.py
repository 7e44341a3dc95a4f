"""Variables of v1 graphs on the server with the fewest bytes so far."""

import pytest
import tensorflow as tf

import tf_syncrep as tfs

tf1 = tf.compat.v1
SHAPES = [[1000, 10], [10], [1000, 9], [3], [200, 10], [50, 2], []]


def tasks(make, num_tasks=3):
    """The servers of the variables that a function makes, one for each shape."""
    setter = tf1.train.replica_device_setter(
        num_tasks, ps_strategy=tfs.train.GreedyLoadBalancingStrategy(num_tasks)
    )
    with tf.Graph().as_default(), tf1.device(setter):
        made = [make(f"v{i}", shape) for i, shape in enumerate(SHAPES)]
        loss = tf.add_n([tf.reduce_sum(x) for x in made])
        optimizer = tf1.train.AdamOptimizer()
        optimizer.minimize(loss)
        slots = [optimizer.get_slot(x, "m") for x in made]
        found = [tf.DeviceSpec.from_string(x.device) for x in made]
        beside = [tf.DeviceSpec.from_string(x.device) for x in slots]
    assert [x.task for x in beside] == [x.task for x in found]
    return [x.task for x in found]


@pytest.mark.parametrize("use_resource", [False, True])
def test_servers_fill_up_with_variables_of_either_kind(use_resource):
    found = tasks(lambda *args: tf1.get_variable(*args, use_resource=use_resource))
    assert found == [0, 1, 2, 1, 1, 1, 1]


def test_all_replicas_find_the_same_places_also_of_parts():
    def make(name, shape):
        partitioner = tf1.fixed_size_partitioner(2) if name == "v0" else None
        found = tf1.get_variable(name, shape, partitioner=partitioner)
        return next(iter(found)) if partitioner else found

    assert tasks(make) == tasks(make) == [0, 2, 2, 0, 1, 0, 0]


def test_imported_graphs_are_placed():
    """Their ops come to the strategy as definitions."""
    with tf.Graph().as_default() as made:
        for size in (100, 1, 50):
            tf1.get_variable(f"v{size}", [size], use_resource=True)
    strategy = tfs.train.GreedyLoadBalancingStrategy(2)
    found = [
        strategy(node) for node in made.as_graph_def().node if node.op == "VarHandleOp"
    ]
    assert found == [0, 1, 1]


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.int64])
def test_load_is_bytes(dtype, use_resource):
    with tf.Graph().as_default():
        made = tf1.get_variable("v", [3, 5], dtype, use_resource=use_resource)
        assert tfs.train.byte_size_load_fn(made.op) == 15 * dtype.size


def test_what_has_no_known_size_counts_as_nothing():
    with tf.Graph().as_default():
        made = tf1.Variable(
            tf1.placeholder_with_default(tf.zeros([2]), None),
            validate_shape=False,
            use_resource=True,
        )
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
        for op in (made.op, table.resource_handle.op):
            assert tfs.train.byte_size_load_fn(op) == 0


@pytest.mark.parametrize("load", [-1, float("nan"), float("inf")])
def test_a_wrong_load_is_refused(load):
    strategy = tfs.train.GreedyLoadBalancingStrategy(2, lambda op: load)
    with tf.Graph().as_default():
        made = tf1.get_variable("v", [1])
        with pytest.raises(ValueError, match=f"at least 0. Received: {load} for v"):
            strategy(made.op)


def test_a_number_of_servers_is_needed():
    with pytest.raises(ValueError, match=r"whole number.* num_tasks=0"):
        tfs.train.GreedyLoadBalancingStrategy(0)
