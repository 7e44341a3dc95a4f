"""What a train op of SyncReplicasOptimizer sends between tasks."""

import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.distribute import local_cluster

tf1 = tf.compat.v1


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


def _transfers(cluster, loss_of, use_resource=True):
    """From where to where each tensor goes that leaves its task in a step.

    Args:
        cluster: the fixture.
        loss_of: makes variables, after the global step, and the loss.
        use_resource: whether they are resource variables.
    """
    spec, target = cluster
    setter = tf1.train.replica_device_setter(
        cluster=spec, worker_device="/job:worker/task:0"
    )
    scope = tf1.variable_scope("", use_resource=use_resource)
    with tf.Graph().as_default(), scope, tf1.device(setter):
        step = tf1.train.get_or_create_global_step()
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(0.1), 1, 1
        )
        train_op = optimizer.minimize(loss_of(), global_step=step)
        hook = optimizer.make_session_run_hook(True, num_tokens=0)
        creator = tf1.train.ChiefSessionCreator(master=target)
        metadata = tf1.RunMetadata()
        with tf1.train.MonitoredSession(creator, [hook]) as session:
            assert session.run(train_op) == 1
            trained = session.run(
                train_op,
                options=tf1.RunOptions(output_partition_graphs=True),
                run_metadata=metadata,
            )
            assert trained == session.run(step) == 2
    ends = [
        tuple(_task(node.attr[end].s) for end in ("send_device", "recv_device"))
        for graph in metadata.partition_graphs
        for node in graph.node
        if node.op in ("_Recv", "_HostRecv")
    ]
    return [(sender, receiver) for sender, receiver in ends if sender != receiver]


def _task(device):
    spec = tf.DeviceSpec.from_string(device.decode())
    return f"{spec.job}-{spec.task}"


def _six_layers():
    signal = tf.ones([8, 16])
    for i in range(6):
        signal = tf.matmul(signal, tf1.get_variable(f"w{i}", [16, 16]))
    return tf.reduce_mean(signal)


def _table():
    table = tf1.get_variable("table", [100, 16])
    return tf.reduce_sum(tf.nn.embedding_lookup(table, tf1.constant([1, 2])))


def test_a_step_sends_few_tensors_between_tasks(cluster):
    # Six variables and the permit to the worker; from it what the gate is told, and
    # the gradients of each server; the round to the other server, and its answer.
    # TensorFlow's class sends 16 (run once: its session takes two minutes to close):
    # each gradient by itself, the step to each server, and a token.
    assert len(_transfers(cluster, _six_layers)) <= 7 + 3 + 2


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_a_step_is_between_a_replica_and_the_server_of_its_table(cluster, use_resource):
    # The global step is on the other one.
    tasks = set(_transfers(cluster, _table, use_resource))
    assert tasks == {("ps-1", "worker-0"), ("worker-0", "ps-1")}
