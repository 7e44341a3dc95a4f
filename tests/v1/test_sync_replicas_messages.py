"""The messages of SyncReplicasOptimizer's train op between tasks, and their content."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.distribute import local_cluster

tf1 = tf.compat.v1

_GRAPHS = itertools.count()


@pytest.fixture(scope="module")
def cluster():
    """Addresses and servers of a worker and two parameter servers, in this process."""
    ports = local_cluster.LocalCluster(1, 2, False)
    spec = tf1.train.ClusterSpec(ports.tasks[0].cluster)
    with pytest.MonkeyPatch.context() as patch:
        # they are reserved until they are closed
        patch.setenv("TF_GRPC_REUSE_PORT", "true")
        servers = {
            (job, index): tf1.train.Server(spec, job, index)
            for job, index in (("ps", 0), ("ps", 1), ("worker", 0))
        }
    yield spec, servers["worker", 0].target
    ports.close()


@contextlib.contextmanager
def _replica(cluster, use_resource=True):
    """A graph of the worker, whose variables go to the servers in turn."""
    setter = tf1.train.replica_device_setter(
        cluster=cluster[0], worker_device="/job:worker/task:0"
    )
    # The servers keep resources of other tests, by name.
    scope = f"graph{next(_GRAPHS)}"
    with (
        tf.Graph().as_default(),
        tf1.variable_scope(scope, use_resource=use_resource),
        tf1.device(setter),
    ):
        tf1.train.create_global_step()
        yield


def _minimize(loss, **arguments):
    """The optimizer and the train op."""
    optimizer = tfs.train.SyncReplicasOptimizer(
        tf1.train.GradientDescentOptimizer(0.1), 1, 1, **arguments
    )
    return optimizer, optimizer.minimize(loss, tf1.train.get_global_step())


def _session(cluster, optimizer):
    hook = optimizer.make_session_run_hook(True, num_tokens=0)
    creator = tf1.train.ChiefSessionCreator(master=cluster[1])
    return tf1.train.MonitoredSession(creator, [hook])


def _transfers(cluster, loss_of, use_resource=True):
    """The sender and the receiver of each tensor that leaves its task in a step."""
    metadata = tf1.RunMetadata()
    with _replica(cluster, use_resource):
        optimizer, train_op = _minimize(loss_of())
        step = tf1.train.get_global_step()
        with _session(cluster, optimizer) as session:
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
    """A gradient of some rows, whose number is not known beforehand."""
    rows = tf.range(tf1.random_uniform([], 1, 5, tf.int64))[:, tf.newaxis]
    table = tf1.get_variable("table", [100, 16])
    return tf.reduce_sum(tf.nn.embedding_lookup(table, rows))


def test_a_step_sends_few_tensors_between_tasks(cluster):
    # Six variables and the permit are sent to the worker. The worker sends the gate's
    # message with the gradients of the gate's server, and those of the other server;
    # the gate sends the round to that server, which sends its answer. TensorFlow's
    # class sends 16 (run once, since its session takes two minutes to close): each
    # gradient separately, the step to each server, and a token.
    assert len(_transfers(cluster, _six_layers)) <= 7 + 2 + 2


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_a_step_is_between_a_replica_and_the_server_of_its_table(cluster, use_resource):
    # The global step is on the other one.
    tasks = set(_transfers(cluster, _table, use_resource))
    assert tasks == {("ps-1", "worker-0"), ("worker-0", "ps-1")}


@pytest.mark.parametrize(
    ("use_resource", "partitions"),
    [(False, 3), (True, None)],
    ids=["ref-in_parts", "resource-whole"],
)
def test_what_goes_with_it_is_applied_bit_for_bit_or_dropped(
    cluster, use_resource, partitions
):
    random = np.random.default_rng(6)
    partitioner = partitions and tf1.fixed_size_partitioner(partitions)
    with _replica(cluster, use_resource):
        weight = tf1.placeholder(tf.float64, [7])
        rows = [tf1.placeholder([tf.int64, tf.int32][i % 2], [None]) for i in range(5)]
        used = [
            tf1.get_variable(f"v{i}", [7], dtype, tf1.ones_initializer())
            for i, dtype in enumerate((tf.float32, tf.half, tf.bfloat16, tf.double) * 2)
        ]
        for i, one in enumerate(rows):
            table = tf1.get_variable(f"t{i}", [30, 16], partitioner=partitioner)
            used.append(tf1.nn.embedding_lookup(table, one)[:, :7])
        loss = tf.add_n([tf.reduce_sum(tf.cast(x, tf.float64) * weight) for x in used])
        variables = tf1.trainable_variables()
        alone = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        optimizer, train_op = _minimize(loss, reject_nonfinite=True)
        initial = [random.normal(size=one.shape.as_list()) for one in variables]
        assign = [tf1.assign(*pair) for pair in zip(variables, initial, strict=True)]
        feeds = [
            {
                weight: random.normal(size=7),
                # No row occurs twice, since the order in a sum would matter.
                **{
                    one: random.permutation(30)[:size]
                    for one, size in zip(rows, sizes, strict=True)
                },
            }
            for sizes in ([3, 30, 0, 7, 30], [0] * 5, [30, 1, 30, 30, 0])
        ]
        not_finite = {**feeds[0], weight: [1.0] * 6 + [np.nan]}
        with _session(cluster, optimizer) as session:
            session.run(assign)
            begun = session.run(variables)
            steps = [
                session.run(train_op, feed)
                for feed in (feeds[0], not_finite, *feeds[1:])
            ]
            assert steps == [1, 1, 2, 3]
            assert optimizer.stats(session)["rejected"] == 1
            trained = session.run(variables)
            session.run(assign)
            for feed in feeds:
                session.run(alone, feed)
            expected = session.run(variables)
    assert [one.tobytes() for one in trained] == [one.tobytes() for one in expected]
    assert all((one != old).any() for one, old in zip(trained, begun, strict=True))


def test_indices_need_not_be_a_tensor(cluster):
    with _replica(cluster):
        tables = [
            tf1.get_variable(f"t{i}", [4, 16], initializer=tf1.zeros_initializer())
            for i in range(2)
        ]
        gradients = [
            tf.IndexedSlices(tf.ones([2, 16]), indices)
            for indices in ([2, 0], np.array([2, 0]))
        ]
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(1.0), 1, 1
        )
        train_op = optimizer.apply_gradients(
            list(zip(gradients, tables, strict=True)), tf1.train.get_global_step()
        )
        with _session(cluster, optimizer) as session:
            assert session.run(train_op) == 1
            for table in session.run(tables):
                assert table[:, 0].tolist() == [-1.0, 0.0, -1.0, 0.0]
