"""SyncReplicasOptimizer's weights against one process that averages by hand."""

import numpy as np
import pytest
import sync_replicas_graphs as graphs
import sync_replicas_twin as twin
import tensorflow as tf

import tf_syncrep as tfs

tf1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("device")

variable_kinds = pytest.mark.parametrize(
    "use_resource", [False, True], ids=["ref", "resource"]
)


def _assert_weights(weights, steps):
    for actual, expected in zip(weights, twin.train(steps), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


@variable_kinds
@pytest.mark.parametrize("step_dtype", [tf.int32, tf.int64])
def test_one_replica_trains_as_without_it(use_resource, step_dtype):
    replica = graphs.Replica(use_resource=use_resource, step_dtype=step_dtype)
    batches = graphs.batches(4)
    with replica.monitored_session() as session:
        assert replica.train(session, batches) == [1, 2, 3, 4]
        step = session.run(replica.global_step)
        weights = session.run(replica.weights)
        unused = session.run(replica.unused)
    assert step == 4
    assert step.dtype == step_dtype.as_numpy_dtype
    _assert_weights(weights, [[batch] for batch in batches])
    assert unused == [7.0]


@variable_kinds
def test_partitioned_table_trains_part_by_part(use_resource):
    replica = graphs.Replica(use_resource=use_resource, partitions=3)
    batches = graphs.batches(3)
    with replica.monitored_session() as session:
        replica.train(session, batches)
        weights = session.run(replica.weights)
    _assert_weights(weights, [[batch] for batch in batches])


@variable_kinds
def test_fewer_replicas_than_gradients_compute_several_on_the_same_weights(
    use_resource,
):
    replica = graphs.Replica(2, 1, use_resource=use_resource)
    batches = graphs.batches(6)
    with replica.monitored_session() as session:
        assert replica.train(session, batches) == [0, 1, 1, 2, 2, 3]
        weights = session.run(replica.weights)
        stats = replica.optimizer.stats(session)
    assert (stats["updates"], stats["applied"]) == (3, 6)
    _assert_weights(weights, [batches[i : i + 2] for i in (0, 2, 4)])


def test_gradient_is_admitted_when_it_is_ready_and_not_before():
    seen = []

    def compute():
        seen.append(optimizer.stats(raw_session)["admitted"])
        return np.float32(1.0)

    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("weight", initializer=0.0)
        gradient = tf.ensure_shape(tf.numpy_function(compute, [], tf.float32), [])
        optimizer = tfs.train.SyncReplicasOptimizer(graphs.gradient_descent(), 1)
        train_op = optimizer.apply_gradients([(gradient, weight)], step)
        hook = optimizer.make_session_run_hook(True)
        with tf1.train.SingularMonitoredSession([hook]) as session:
            raw_session = session.raw_session()
            for _ in range(3):
                session.run(train_op)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("reduction_type", "expected"),
    [("MEAN", [3.0, 4.0, 0.0]), ("CMEAN", [3.0, 2.0, 0.0]), ("SUM", [6.0, 4.0, 0.0])],
)
def test_sparse_rows_are_divided_as_asked_for(reduction_type, expected):
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        table = tf1.get_variable("table", initializer=tf.zeros([3, 1]))
        rows = tf1.placeholder(tf.int32, [None])
        values = tf1.placeholder(tf.float32, [None, 1])
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(-1.0),
            2,
            1,
            sparse_reduction_type=reduction_type,
        )
        train_op = optimizer.apply_gradients(
            [(tf.IndexedSlices(values, rows, [3, 1]), table)], global_step=step
        )
        hook = optimizer.make_session_run_hook(True)
        with tf1.train.SingularMonitoredSession([hook]) as session:
            session.run(train_op, {rows: [0, 1], values: [[2.0], [4.0]]})
            session.run(train_op, {rows: [0], values: [[4.0]]})
            result = session.run(table)
    # Row 0 came with both gradients, row 1 with one, row 2 with none.
    np.testing.assert_array_equal(np.ravel(result), expected)


def _adam_async():
    return tfs.train.AdamAsyncOptimizer(0.01)


@variable_kinds
@pytest.mark.parametrize(
    "inner",
    [
        _adam_async,
        lambda: tf1.train.AdamOptimizer(0.01),
        lambda: tf1.train.AdagradOptimizer(0.1),
    ],
    ids=["adam_async", "adam", "adagrad"],
)
def test_any_optimizer_inside_does_what_it_does_alone(inner, use_resource):
    replica = graphs.Replica(inner=inner, use_resource=use_resource)
    batches = graphs.batches(3)
    with replica.graph.as_default():
        # The same graph, its variables initialized alike, another way to train.
        alone = inner().minimize(replica.loss)
        init_op = tf1.global_variables_initializer()
        with tf1.Session() as session:
            session.run(init_op)
            for batch in batches:
                session.run(alone, replica.feed(batch))
            expected = session.run(replica.weights)
    with replica.monitored_session() as session:
        replica.train(session, batches)
        weights = session.run(replica.weights)
    for actual, wanted in zip(weights, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-9)


@variable_kinds
def test_variable_averages_follow_every_step(use_resource):
    with tf.Graph().as_default(), tf1.variable_scope("", use_resource=use_resource):
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("w", initializer=tf.constant(8.0, tf.float64))
        averages = tf.train.ExponentialMovingAverage(0.5)
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(1.0),
            1,
            variable_averages=averages,
            variables_to_average=[weight],
        )
        train_op = optimizer.minimize(weight, global_step=step)
        average = averages.average(weight)
        hook = optimizer.make_session_run_hook(True)
        # The average begins with the weight, which must be there for that.
        others = tf1.variables_initializer([step, average])
        scaffold = tf1.train.Scaffold(
            init_op=weight.initializer,
            init_fn=lambda scaffold, session: session.run(others),
        )
        expected = 8.0
        with tf1.train.SingularMonitoredSession([hook], scaffold) as session:
            for value in (7.0, 6.0, 5.0):
                session.run(train_op)
                expected = 0.5 * expected + 0.5 * value
                assert session.run(weight) == value
            # The last one comes after the replicas were let go on.
            graphs.until(lambda: session.run(average) == expected)
