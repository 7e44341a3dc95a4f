"""Gradients that SyncReplicasOptimizer must not apply, and what becomes of them."""

import threading

import numpy as np
import pytest
import sync_replicas_graphs as graphs
import sync_replicas_twin as twin
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.ops import sync_gate_ops

tf1 = tf.compat.v1

OTHER = ("/job:worker/replica:0/task:7", 77)


class _RawReplica:
    """An optimizer that is fed with gradients as they are."""

    def __init__(self, **arguments):
        with tf.Graph().as_default() as self.graph:
            self.step = tf1.train.get_or_create_global_step()
            self.vector = tf1.get_variable("vector", initializer=[1.0, 1.0])
            self.table = tf1.get_variable("table", initializer=[[1.0], [1.0], [1.0]])
            self.gradient = tf1.placeholder(tf.float32, None)
            self.rows = tf1.placeholder(tf.int32, None)
            self.values = tf1.placeholder(tf.float32, None)
            self.optimizer = tfs.train.SyncReplicasOptimizer(
                tf1.train.GradientDescentOptimizer(1.0), 1, **arguments
            )
            slices = tf.IndexedSlices(self.values, self.rows)
            self.train_op = self.optimizer.apply_gradients(
                [(self.gradient, self.vector), (slices, self.table)],
                global_step=self.step,
            )

    def session(self):
        with self.graph.as_default():
            hook = self.optimizer.make_session_run_hook(True)
            return tf1.train.SingularMonitoredSession([hook])

    def train(self, session, gradient=(1.0, 1.0), rows=(2,), values=((1.0,),)):
        feed = {self.gradient: gradient, self.rows: rows, self.values: values}
        return int(session.run(self.train_op, feed))

    def weights(self, session):
        vector, table = session.run([self.vector, self.table])
        return vector.tolist(), np.ravel(table).tolist()


BAD = {
    "index_too_large": (
        {"rows": [0, 3], "values": [[1.0], [1.0]]},
        r"The gradient of table:0 must have indices in \[0, 3\), but has",
    ),
    "negative_index": (
        {"rows": [-1]},
        r"The gradient of table:0 must have indices in \[0, 3\), but has",
    ),
    "fewer_rows_than_indices": (
        {"rows": [0, 1]},
        "The gradient of table:0 must have values of shape",
    ),
    "rows_of_another_size": (
        {"values": [[1.0, 2.0]]},
        "The gradient of table:0 must have values of shape",
    ),
    "dense_of_another_shape": (
        {"gradient": [1.0, 1.0, 1.0]},
        "The gradient of vector:0 must have shape",
    ),
    "dense_of_another_rank": (
        {"gradient": [[1.0, 1.0]]},
        "The gradient of vector:0 must have shape",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_malformed_gradient_is_an_error_that_names_it_and_pushes_nothing(case):
    arguments, message = BAD[case]
    replica = _RawReplica()
    with replica.session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            replica.train(session.raw_session(), **arguments)
        stats = replica.optimizer.stats(session)
        assert (stats["admitted"], stats["updates"]) == (0, 0)
        assert replica.train(session) == 1
        assert replica.weights(session) == ([0.0, 0.0], [1.0, 1.0, 0.0])


@pytest.mark.parametrize(
    "arguments",
    [{"gradient": [np.nan, 1.0]}, {"values": [[np.inf]]}],
    ids=["dense_nan", "sparse_inf"],
)
def test_nonfinite_gradient_is_dropped_and_counted_where_that_is_asked_for(arguments):
    replica = _RawReplica(reject_nonfinite=True)
    with replica.session() as session:
        assert replica.train(session, **arguments) == 0
        assert replica.weights(session) == ([1.0, 1.0], [1.0, 1.0, 1.0])
        assert replica.train(session) == 1
        stats = replica.optimizer.stats(session)
        assert replica.weights(session) == ([0.0, 0.0], [1.0, 1.0, 0.0])
    assert (stats["rejected"], stats["admitted"], stats["updates"]) == (1, 1, 1)


def test_nonfinite_gradient_is_seen_in_the_weights_otherwise():
    replica = _RawReplica()
    with replica.session() as session:
        assert replica.train(session, gradient=[np.nan, 1.0]) == 1
        vector, table = replica.weights(session)
        assert replica.optimizer.stats(session)["rejected"] == 0
    assert np.isnan(vector[0])
    assert (vector[1], table) == (0.0, [1.0, 1.0, 0.0])


def test_late_gradient_is_dropped_and_a_void_round_begun_anew():
    replica = graphs.Replica(1, 2)
    late, counted = graphs.batches(2)
    with replica.graph.as_default():
        # Another replica, as its own graph would call the gate.
        gate = replica.optimizer._gate
        acquired = sync_gate_ops.sync_gate_acquire(gate, *OTHER)
        numbers = [tf1.placeholder(tf.int64, []) for _ in range(2)]
        admit = sync_gate_ops.sync_gate_admit(gate, *numbers, *OTHER, True)
        leave = sync_gate_ops.sync_gate_leave(gate, *OTHER)
    with replica.monitored_session() as session:
        raw = session.raw_session()
        generation, round_number, _ = raw.run(acquired)
        feed = dict(zip(numbers, (generation, round_number), strict=True))
        assert raw.run(admit, feed)
        steps = []
        train = threading.Thread(
            target=lambda: steps.extend(replica.train(raw, [late])), daemon=True
        )
        train.start()
        graphs.until(lambda: replica.optimizer.stats(raw)["late"] == 1)
        # The round was the other one's, and will not be committed.
        raw.run(leave)
        train.join(graphs.DEADLINE_SECS)
        assert steps == [0]
        assert replica.train(session, [counted]) == [1]
        stats = replica.optimizer.stats(session)
        weights = session.run(replica.weights)
    assert (stats["voids"], stats["aborted"], stats["updates"]) == (1, 1, 1)
    for actual, expected in zip(weights, twin.train([[counted]]), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
