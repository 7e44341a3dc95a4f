"""What a train op of SyncReplicasOptimizer sends between tasks."""

import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.distribute import local_cluster
from tf_syncrep.python.train import gradient_transfers

tf1 = tf.compat.v1


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


@pytest.fixture(scope="module")
def cluster():
    """Addresses and servers of a worker and two parameter servers, in this process."""
    ports = local_cluster.LocalCluster(1, 2, False)
    spec = tf1.train.ClusterSpec(ports.tasks[0].config.cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_GRPC_REUSE_PORT", "true")  # They are reserved until closed.
        servers = {
            (job, index): tf1.train.Server(spec, job, index)
            for job, index in (("ps", 0), ("ps", 1), ("worker", 0))
        }
    yield spec, servers["worker", 0].target
    ports.close()


def _transfers(cluster, optimizer):
    """The number of tensors that go from task to task in a step of six layers."""
    spec, target = cluster
    with tf.Graph().as_default():
        setter = tf1.train.replica_device_setter(
            cluster=spec, worker_device="/job:worker/task:0"
        )
        with tf1.device(setter):
            step = tf1.train.get_or_create_global_step()
            signal = tf.ones([8, 16])
            for i in range(6):
                signal = tf.matmul(signal, tf1.get_variable(f"w{i}", [16, 16]))
            train_op = optimizer.minimize(tf.reduce_mean(signal), global_step=step)
        hook = optimizer.make_session_run_hook(True, num_tokens=0)
        creator = tf1.train.ChiefSessionCreator(master=target)
        metadata = tf1.RunMetadata()
        with tf1.train.MonitoredSession(creator, [hook]) as session:
            session.run(
                train_op,
                options=tf1.RunOptions(output_partition_graphs=True),
                run_metadata=metadata,
            )
    received = [
        (node.attr["tensor_name"].s, node.attr["recv_device"].s)
        for graph in metadata.partition_graphs
        for node in graph.node
        if node.op == "_Recv"
    ]
    return len(received)


def test_a_step_sends_few_tensors_between_tasks(cluster):
    sent = _transfers(
        cluster,
        tfs.train.SyncReplicasOptimizer(tf1.train.GradientDescentOptimizer(0.1), 1, 1),
    )
    # Six variables and the permit to the worker; from it what the gate is told, and
    # the gradients of each server; the round to the other server, and its answer.
    # TensorFlow's class sends 16 (run once: its session takes two minutes to close):
    # each gradient by itself, the step to each server, and a token.
    assert sent <= 7 + 3 + 2
