"""SyncReplicasOptimizer with real processes: exact, and never waiting for the absent.

Against TensorFlow's own class, with its default tokens, two workers of ten batches
make 8 updates instead of 10, and a worker with fewer batches leaves the others waiting
for ever.
"""

import json
import pathlib
import sys

import clusters
import numpy as np
import programs
import pytest
import sync_replicas_twin as twin

_PROGRAM = pathlib.Path(__file__).with_name("sync_replicas_program.py")


def _start(cluster, worker, batches, quorum, **arguments):
    command = [sys.executable, str(_PROGRAM)]
    command += map(json.dumps, (batches, quorum, arguments))
    cluster.start(f"worker-{worker}", command)


def _cluster(num_workers):
    cluster = clusters.Cluster(
        num_workers, num_ps=2, chief=False, env=programs.environment()
    )
    return _Servers(cluster)


class _Servers:
    """Starts a cluster's parameter servers alone: workers run the program."""

    def __init__(self, cluster):
        self._cluster = cluster

    def __enter__(self):
        for name in ("ps-0", "ps-1"):
            self._cluster.start(name)
        return self._cluster

    def __exit__(self, *exc_info):
        self._cluster.__exit__(*exc_info)


def _result(cluster, workers):
    for worker in workers:
        assert cluster.wait(f"worker-{worker}") == 0, cluster.output(f"worker-{worker}")
    result = programs.result_in(cluster.output("worker-0"))
    stats = result["stats"]
    assert stats["admitted"] == (
        stats["committed"] + stats["aborted"] + stats["in_flight"]
    )
    assert stats["committed"] == stats["applied"] + stats["voided"] + stats["pending"]
    assert stats["rounds"] == stats["updates"] + stats["voids"]
    assert stats["updates"] == result["global_step"]
    assert result["close_secs"] < 10
    return result


def _assert_weights(result, steps):
    dense, table = twin.train(steps)
    np.testing.assert_allclose(result["dense"], dense, rtol=1e-12)
    np.testing.assert_allclose(result["table"], table, rtol=1e-12)


@pytest.mark.parametrize("first", [0, 1])
def test_weights_are_those_of_one_process_whoever_starts_first(first):
    batches = [10, 10]
    with _cluster(2) as cluster:
        _start(cluster, first, batches, quorum=2)
        if first == 0:
            cluster.wait_until_ready("worker-0")
        _start(cluster, 1 - first, batches, quorum=2)
        result = _result(cluster, (0, 1))
    assert result["global_step"] == 10
    assert result["stats"]["voids"] == result["stats"]["stale"] == 0
    _assert_weights(result, [[twin.batch(0, b), twin.batch(1, b)] for b in range(10)])


def test_worker_with_fewer_batches_leaves_and_the_chief_takes_over_its_share():
    with _cluster(2) as cluster:
        for worker in (0, 1):
            _start(cluster, worker, [11, 3], quorum=2)
        result = _result(cluster, (0, 1))
    # Three steps of both; then two gradients a step from the chief alone.
    assert result["global_step"] == 3 + 4
    steps = [[twin.batch(0, b), twin.batch(1, b)] for b in range(3)]
    steps += [[twin.batch(0, b), twin.batch(0, b + 1)] for b in range(3, 11, 2)]
    _assert_weights(result, steps)


def test_killed_worker_delays_the_others_by_its_lease_and_no_more():
    with _cluster(2) as cluster:
        for worker in (0, 1):
            _start(cluster, worker, [40, 100000], quorum=2, lease_secs=2.0)
        cluster.wait_for_output("worker-1", "ran 3")
        cluster.kill("worker-1")
        result = _result(cluster, (0,))
    stats = result["stats"]
    assert stats["live"] == 1
    # What the dead worker had committed counts, once; the rest is the chief's, of
    # which an odd one is left over.
    by_worker = [worker["contributed"] for worker in stats["workers"].values()]
    assert sum(by_worker) == stats["committed"]
    assert by_worker[0] == 40
    assert by_worker[1] >= 4
    assert stats["pending"] <= 1
