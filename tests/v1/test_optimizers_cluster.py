"""Between-graph replication: real worker and PS processes, asynchronous training.

Every worker builds the same graph with `replica_device_setter` and trains through a
session on its own server; here each worker's client is a thread. If there is a GPU, the
variables of AdamAsync are also on those of the PS tasks.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import clusters
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

tf1 = tf.compat.v1

WORKERS = 2
STEPS = 60
# Of Adagrad.
RATE, INITIAL = 0.25, 0.5


class Replica:
    """One worker's graph: tables, one in parts, and vectors on two PS."""

    def __init__(self, cluster_spec, index, use_resource, device):
        self.graph = tf.Graph()
        setter = tf1.train.replica_device_setter(
            ps_device=f"/job:ps/device:{device}:0",
            worker_device=f"/job:worker/task:{index}",
            cluster=cluster_spec,
        )
        zeros = tf1.zeros_initializer()
        with (
            self.graph.as_default(),
            tf1.variable_scope("", use_resource=use_resource, initializer=zeros),
            tf1.device(setter),
        ):
            tables = [
                tf1.get_variable("whole", [40, 8]),
                tf1.get_variable(
                    "parts", [40, 8], partitioner=tf1.fixed_size_partitioner(2)
                ),
            ]
            vector = tf1.get_variable("vector", [16])
            trained = tf1.trainable_variables()
            # Row 3 is always there, and so are rows that only this worker trains.
            rows = tf.constant([3, 10 + index, 20 + index, 3])
            loss = tf.reduce_sum(vector)
            for table in tables:
                loss += tf.reduce_sum(tf1.nn.embedding_lookup(table, rows))
            step = tf1.train.get_or_create_global_step()
            # With these each step subtracts 1, in any order of the workers.
            optimizer = tfs.train.AdamAsyncOptimizer(
                1.0, beta1=0.0, beta2=0.0, epsilon=0.0
            )
            # The powers count: n updates leave 0.5 ** (n + 1).
            counter = tf1.get_variable("counter", [], tf.float64)
            counting = tfs.train.AdamAsyncOptimizer(
                1.0, beta1=0.5, beta2=0.5, name="Counting"
            )
            with tf1.device("/cpu:0"):  # Adagrad has no GPU kernel.
                summed = tf1.get_variable("summed", [40, 8], tf.float64)
            adagrad = tfs.train.AdagradOptimizer(RATE, INITIAL)
            of_summed = tf.reduce_sum(tf1.nn.embedding_lookup(summed, rows))
            self.train_op = tf.group(
                optimizer.minimize(loss, step, var_list=trained),
                counting.apply_gradients([(tf.ones([], tf.float64), counter)]),
                adagrad.minimize(of_summed, var_list=[summed]),
            )
            sums = adagrad.get_slot(summed, "accumulator")
            assert sums.device == summed.device
            powers = [
                counting.get_slot(counter, name)
                for name in ("beta1_power", "beta2_power")
            ]
            tables = [tf.convert_to_tensor(table) for table in tables]
            self.results = [step, vector, powers, tables, summed, sums]
            self.initializer = tf1.global_variables_initializer()
            self.uninitialized = tf1.report_uninitialized_variables()


def by_adagrad():
    """The table and its slot: all gradients of a row are the same, in any order."""
    table, slot = np.zeros([40, 8]), np.full([40, 8], INITIAL)
    of_one = [first + index for first in (10, 20) for index in range(WORKERS)]
    for row, gradient, updates in (
        (3, 2.0, WORKERS * STEPS),
        *((row, 1.0, STEPS) for row in of_one),
    ):
        sums = INITIAL + gradient**2 * np.arange(1, updates + 1)
        table[row] = -np.sum(RATE * gradient / np.sqrt(sums))
        slot[row] = sums[-1]
    return table, slot


@pytest.fixture(scope="module")
def cluster():
    with clusters.Cluster(num_workers=WORKERS, num_ps=2, chief=False) as cluster:
        yield cluster


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_no_update_of_any_worker_is_lost(cluster, use_resource, device):
    spec = json.loads(cluster.tf_config("worker-0"))["cluster"]
    start = threading.Barrier(WORKERS)

    def train(index):
        replica = Replica(spec, index, use_resource, device)
        with tf1.Session(
            "grpc://" + cluster.address(f"worker-{index}"),
            graph=replica.graph,
            config=tf1.ConfigProto(allow_soft_placement=True),
        ) as session:
            if index == 0:
                session.run(replica.initializer)
            start.wait(60)
            assert session.run(replica.uninitialized).size == 0
            for _ in range(STEPS):
                session.run(replica.train_op)
            start.wait(60)
            return session.run(replica.results)

    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(train, index) for index in range(WORKERS)]
        results = [future.result(120) for future in futures]

    for global_step, vector, powers, tables, *of_adagrad in results:
        assert global_step == WORKERS * STEPS
        np.testing.assert_array_equal(vector, np.full([16], -WORKERS * STEPS))
        assert powers == [0.5 ** (WORKERS * STEPS + 1)] * 2
        for table in tables:
            assert np.all(np.isin(table, [0.0, -STEPS, -WORKERS * STEPS]))
            assert np.count_nonzero(table == -WORKERS * STEPS) == 8
            assert np.count_nonzero(table == -STEPS) == 2 * WORKERS * 8
        for got, want in zip(of_adagrad, by_adagrad(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)
