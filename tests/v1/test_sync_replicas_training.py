"""SyncReplicasOptimizer's weights, compared with one process that averages by hand."""

import numpy as np
import pytest
import sync_replicas_twin as twin
import tensorflow as tf
import waiting
from v1_optimizers import RULES

import tf_syncrep as tfs

tf1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("device")

variable_kinds = pytest.mark.parametrize(
    "use_resource", [False, True], ids=["ref", "resource"]
)


@pytest.mark.parametrize(
    ("use_resource", "step_dtype", "partitions"),
    [
        (False, tf.int32, None),
        (True, tf.int64, None),
        (False, tf.int64, 3),
        (True, tf.int32, 3),
    ],
)
def test_one_replica_trains_as_without_it(use_resource, step_dtype, partitions):
    replica = twin.Replica(
        use_resource=use_resource, step_dtype=step_dtype, partitions=partitions
    )
    batches = twin.batches(4)
    with replica.monitored_session() as session:
        assert replica.train(session, batches) == [1, 2, 3, 4]
        step = session.run(replica.global_step)
        weights = session.run(replica.weights)
        unused = session.run(replica.unused)
    assert step == 4
    assert step.dtype == step_dtype.as_numpy_dtype
    twin.assert_weights(weights, [[batch] for batch in batches])
    assert unused == [7.0]


def test_gradient_is_admitted_when_it_is_ready_and_not_before():
    seen = []

    def compute():
        seen.append(optimizer.stats(raw_session)["admitted"])
        return np.float32(1.0)

    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("weight", initializer=0.0)
        gradient = tf.ensure_shape(tf.numpy_function(compute, [], tf.float32), [])
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(0.1), 1
        )
        train_op = optimizer.apply_gradients([(gradient, weight)], step)
        hook = optimizer.make_session_run_hook(True)
        with tf1.train.SingularMonitoredSession([hook]) as session:
            raw_session = session.raw_session()
            for _ in range(3):
                session.run(train_op)
    assert seen == [0, 1, 2]


def test_malformed_gradients_are_named_and_not_pushed_and_others_applied_as_they_are():
    with tf.Graph().as_default():
        vector = tf1.get_variable("vector", initializer=[1.0, 1.0])
        table = tf1.get_variable("table", initializer=[[1.0], [1.0], [1.0]])
        dense, values = (tf1.placeholder(tf.float32, None) for _ in range(2))
        rows = tf1.placeholder(tf.int32, None)
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(1.0), 1
        )
        train_op = optimizer.apply_gradients(
            [(dense, vector), (tf.IndexedSlices(values, rows), table)],
            tf1.train.get_or_create_global_step(),
        )
        good = {dense: [1.0, 1.0], rows: [2], values: [[1.0]]}
        hook = optimizer.make_session_run_hook(True)
        with tf1.train.SingularMonitoredSession([hook]) as session:
            for malformed, message in [
                (
                    {rows: [0, 3], values: [[1.0], [1.0]]},
                    r"indices in \[0, 3\), but has",
                ),
                ({rows: [-1]}, r"indices in \[0, 3\), but has"),
                ({rows: [0, 1]}, "values of shape"),
                ({values: [[1.0, 2.0]]}, "values of shape"),
                ({dense: [1.0, 1.0, 1.0]}, "shape"),
                ({dense: [[1.0, 1.0]]}, "shape"),
            ]:
                name = "vector:0" if dense in malformed else "table:0"
                message = f"The gradient of {name} must have {message}"
                with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                    session.raw_session().run(train_op, {**good, **malformed})
            stats = optimizer.stats(session)
            assert (stats["admitted"], stats["updates"]) == (0, 0)
            assert session.run(train_op, good) == 1
            assert session.run(vector).tolist() == [0.0, 0.0]
            assert session.run(table).tolist() == [[1.0], [1.0], [0.0]]
            # Values that are not finite are only noticed on request.
            assert session.run(train_op, {**good, dense: [np.nan, 1.0]}) == 2
            np.testing.assert_array_equal(session.run(vector), [np.nan, -1.0])
            assert session.run(table).tolist() == [[1.0], [1.0], [-1.0]]
            assert optimizer.stats(session)["rejected"] == 0


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


@pytest.mark.parametrize(
    ("inner", "use_resource"),
    [
        (lambda: tfs.train.AdamAsyncOptimizer(0.01), False),
        (lambda: tfs.train.AdamAsyncOptimizer(0.01), True),
        (lambda: tf1.train.AdamOptimizer(0.01), False),
        (lambda: tf1.train.AdagradOptimizer(0.1), True),
        *((case.make, True) for case in RULES.values()),
    ],
    ids=[
        *("adam_async-ref", "adam_async-resource", "adam-ref", "adagrad-resource"),
        *RULES,
    ],
)
def test_any_optimizer_inside_does_what_it_does_alone(inner, use_resource, device):
    if device == "GPU" and inner in [case.make for case in RULES.values()]:
        pytest.skip("the rules have no GPU kernels")
    replica = twin.Replica(inner=inner, use_resource=use_resource)
    batches = twin.batches(3)
    with replica.graph.as_default():
        # The same graph, with the same initial values, is trained in another way.
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
        # The average begins with the weight, which must be initialized for that.
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
            # The last one comes after the replicas were allowed to go on.
            waiting.until(lambda: session.run(average) == expected)
