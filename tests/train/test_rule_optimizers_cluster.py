"""AdagradOptimizer in sessions of two workers, with a table on a parameter server.

The server is a process of its own; each worker's client is a thread.
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

WORKERS, STEPS = 2, 50
RATE, INITIAL = 0.25, 0.5


@pytest.fixture(scope="module")
def cluster():
    with clusters.Cluster(num_workers=WORKERS, num_ps=1, chief=False) as cluster:
        yield cluster


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_no_update_of_any_worker_is_lost(cluster, use_resource):
    spec = json.loads(cluster.tf_config("worker-0"))["cluster"]
    start = threading.Barrier(WORKERS)

    def train(index):
        setter = tf1.train.replica_device_setter(
            worker_device=f"/job:worker/task:{index}", cluster=spec
        )
        with (
            tf.Graph().as_default(),
            tf1.device(setter),
            tf1.Session("grpc://" + cluster.address(f"worker-{index}")) as session,
        ):
            table = tf1.get_variable(
                "table",
                [40, 8],
                tf.float64,
                initializer=tf1.zeros_initializer(),
                use_resource=use_resource,
            )
            # Row 3 is of both workers, and twice; the others are of one.
            rows = tf.constant([3, 10 + index, 3])
            loss = tf.reduce_sum(tf1.nn.embedding_lookup(table, rows))
            optimizer = tfs.train.AdagradOptimizer(RATE, INITIAL)
            train_op = optimizer.minimize(loss)
            assert optimizer.get_slot(table, "accumulator").device == table.device
            if index == 0:
                session.run(tf1.global_variables_initializer())
            start.wait(60)
            for _ in range(STEPS):
                session.run(train_op)
            start.wait(60)
            return session.run([table, optimizer.get_slot(table, "accumulator")])

    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(train, index) for index in range(WORKERS)]
        results = [future.result(120) for future in futures]

    # All gradients of a row are the same, so that the order does not matter.
    expected = np.zeros([40, 8]), np.full([40, 8], INITIAL)
    for row, gradient, updates in (
        (3, 2.0, WORKERS * STEPS),
        *((10 + index, 1.0, STEPS) for index in range(WORKERS)),
    ):
        sums = INITIAL + gradient**2 * np.arange(1, updates + 1)
        expected[0][row] = -np.sum(RATE * gradient / np.sqrt(sums))
        expected[1][row] = sums[-1]
    for values in results:
        for got, want in zip(values, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)
