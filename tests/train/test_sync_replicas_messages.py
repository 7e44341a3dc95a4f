"""What a train op of SyncReplicasOptimizer sends between tasks, and how it arrives."""

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
    spec = tf1.train.ClusterSpec(ports.tasks[0].config.cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_GRPC_REUSE_PORT", "true")  # They are reserved until closed.
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
    # The servers keep what other tests have made, by name.
    scope = tf1.variable_scope(f"graph{next(_GRAPHS)}", use_resource=use_resource)
    with tf.Graph().as_default(), scope, tf1.device(setter):
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
    """From where to where each tensor goes that leaves its task in a step.

    Args:
        cluster: the fixture.
        loss_of: makes variables, after the global step, and the loss.
        use_resource: whether they are resource variables.
    """
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
    """Of it some rows, of which it is not known beforehand how many."""
    rows = tf.range(tf1.random_uniform([], 1, 5, tf.int64))[:, tf.newaxis]
    table = tf1.get_variable("table", [100, 16])
    return tf.reduce_sum(tf.nn.embedding_lookup(table, rows))


def _variables(*sizes_and_dtypes):
    return [
        tf1.get_variable(f"v{i}", [size], dtype, tf1.ones_initializer())
        for i, (size, dtype) in enumerate(sizes_and_dtypes)
    ]


def _loss_of(variables, weight=1.0):
    """A loss whose gradient is the weight, of the variables' own dtypes."""
    return tf.add_n(
        [tf.reduce_sum(tf.cast(one, tf.float64) * weight) for one in variables]
    )


def test_a_step_sends_few_tensors_between_tasks(cluster):
    # Six variables and the permit to the worker; from it what the gate is told with the
    # gradients of its server, and those of the other; the round to that, and its
    # answer. TensorFlow's class sends 16 (run once: its session takes two minutes to
    # close): each gradient by itself, the step to each server, and a token.
    assert len(_transfers(cluster, _six_layers)) <= 7 + 2 + 2


DTYPES = (tf.float32, tf.half, tf.bfloat16, tf.double)


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_a_step_is_between_a_replica_and_the_server_of_its_table(cluster, use_resource):
    # The global step is on the other one.
    tasks = set(_transfers(cluster, _table, use_resource))
    assert tasks == {("ps-1", "worker-0"), ("worker-0", "ps-1")}


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_what_goes_with_it_is_applied_bit_for_bit_or_dropped(cluster, use_resource):
    random = np.random.default_rng(5)
    with _replica(cluster, use_resource):
        weight = tf1.placeholder(tf.float64, [7])
        loss = _loss_of(
            _variables(*[(7, dtype) for dtype in DTYPES for _ in range(2)]), weight
        )
        variables = tf1.trainable_variables()
        alone = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        optimizer, train_op = _minimize(loss, reject_nonfinite=True)
        initialize = tf1.variables_initializer(variables)
        with _session(cluster, optimizer) as session:
            weights = [random.normal(size=7) for _ in range(3)]
            weights.insert(1, np.array([1.0] * 6 + [np.nan]))
            steps = [session.run(train_op, {weight: one}) for one in weights]
            assert steps == [1, 1, 2, 3]
            assert optimizer.stats(session)["rejected"] == 1
            trained = session.run(variables)
            session.run(initialize)
            for one in weights:
                if np.isfinite(one).all():
                    session.run(alone, {weight: one})
            expected = session.run(variables)
    assert [one.tobytes() for one in trained] == [one.tobytes() for one in expected]


@pytest.mark.parametrize("partitions", [None, 3], ids=["whole", "in_parts"])
@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_each_table_gets_its_own_indices(cluster, use_resource, partitions):
    random = np.random.default_rng(6)
    partitioner = partitions and tf1.fixed_size_partitioner(partitions)
    with _replica(cluster, use_resource):
        tables = [
            tf1.get_variable(f"t{i}", [30, 16], partitioner=partitioner)
            for i in range(5)
        ]
        dtypes = [tf.int64, tf.int32, tf.int64, tf.int32, tf.int64]
        rows = [tf1.placeholder(dtype, [None]) for dtype in dtypes]
        weight = tf1.placeholder(tf.float32, [16])
        loss = tf.add_n(
            [
                tf.reduce_sum(tf1.nn.embedding_lookup(table, one) * weight)
                for table, one in zip(tables, rows, strict=True)
            ]
        )
        variables = tf1.trainable_variables()
        alone = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        optimizer, train_op = _minimize(loss)
        initial = [random.normal(size=one.shape.as_list()) for one in variables]
        assign = [tf1.assign(*pair) for pair in zip(variables, initial, strict=True)]
        feeds = [
            {
                weight: random.normal(size=16),
                # None of a row twice: their order in a sum would make a difference.
                **{
                    one: random.permutation(30)[:size]
                    for one, size in zip(rows, sizes, strict=True)
                },
            }
            for sizes in ([3, 1, 0, 7, 30], [0] * 5, [1, 30, 2, 0, 5])
        ]
        with _session(cluster, optimizer) as session:
            session.run(assign)
            assert [session.run(train_op, feed) for feed in feeds] == [1, 2, 3]
            trained = session.run(variables)
            session.run(assign)
            for feed in feeds:
                session.run(alone, feed)
            expected = session.run(variables)
    assert [one.tobytes() for one in trained] == [one.tobytes() for one in expected]
    assert any((one != old).any() for one, old in zip(trained, initial, strict=True))


@pytest.mark.parametrize("make", [list, np.array], ids=["list", "array"])
def test_indices_need_not_be_a_tensor(cluster, make):
    with _replica(cluster):
        table = tf1.get_variable("table", [4, 16], initializer=tf1.zeros_initializer())
        gradient = tf.IndexedSlices(tf.ones([2, 16]), make([2, 0]))
        optimizer = tfs.train.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(1.0), 1, 1
        )
        train_op = optimizer.apply_gradients(
            [(gradient, table)], tf1.train.get_global_step()
        )
        with _session(cluster, optimizer) as session:
            assert session.run(train_op) == 1
            assert session.run(table)[:, 0].tolist() == [-1.0, 0.0, -1.0, 0.0]
