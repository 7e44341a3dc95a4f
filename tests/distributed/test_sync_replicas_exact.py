"""SyncReplicasOptimizer with real processes gives the weights of one process.

TensorFlow 2.21's own class did this in the same scenarios across processes. Two workers
of ten batches each, with the default tokens, made 8 updates of 10 in one run and 4 in
another (the weight was -21, not -55). With 11 and 3 batches the first worker had run 7
when it waited for ever. Of three workers with a common last step of 10, two ended after
1 and 12 steps, and the chief after 20 and two minutes more.
"""

import time

import pytest
from sync_replicas_cluster import SyncReplicasCluster


@pytest.mark.parametrize(
    ("order", "use_resource"),
    [
        ((0, 1, 2), False),
        pytest.param((1, 0, 2), True, marks=pytest.mark.ci),
        pytest.param((2, 1, 0), True, marks=pytest.mark.ci),
        pytest.param((0, 2, 1), True, marks=pytest.mark.soak),
        pytest.param((1, 2, 0), False, marks=pytest.mark.soak),
        pytest.param((2, 0, 1), False, marks=pytest.mark.soak),
    ],
)
def test_weights_are_those_of_one_process_in_whichever_order_replicas_start(
    order, use_resource
):
    with SyncReplicasCluster(3) as cluster:
        for place, worker in enumerate(order):
            if worker == 0 and place == 2:
                # It waits for no event, since this tries a chief that comes late.
                time.sleep(2.0)
            cluster.start(
                worker,
                batches=8,
                compute_secs=[0.0, 0.01, 0.03][worker],
                use_resource=use_resource,
            )
            # Each is up before the next one is started. Without a chief none begins.
            if 0 in order[: place + 1]:
                cluster.tasks.wait_for_output(f"worker-{worker}", "begun")
            else:
                cluster.tasks.wait_until_ready(f"worker-{worker}")
        result = cluster.result(ending=range(3))
    stats = result["stats"]
    assert result["global_step"] == 8
    assert stats["voids"] == stats["stale"] == stats["late"] == stats["pending"] == 0
    # The n-th step averages the n-th batches of all workers.
    assert [sorted(pairs) for pairs in cluster.applied()] == [
        [(worker, batch) for worker in range(3)] for batch in range(8)
    ]


def test_replica_with_fewer_batches_leaves_and_the_chief_takes_over_its_share():
    with SyncReplicasCluster(2) as cluster:
        cluster.start(0, batches=11)
        cluster.start(1, batches=3)
        cluster.result(ending=(0, 1))
    # Three steps have gradients of both; later ones have two gradients of the chief
    # alone.
    steps = [sorted(pairs) for pairs in cluster.applied()]
    assert steps[:3] == [[(0, batch), (1, batch)] for batch in range(3)]
    assert steps[3:] == [[(0, batch), (0, batch + 1)] for batch in range(3, 11, 2)]


def test_every_variable_averages_the_same_gradients_those_of_the_fastest():
    with SyncReplicasCluster(3, quorum=2) as cluster:
        cluster.start(0, batches=12, stop_at={"computing": [0, 6]})
        cluster.start(1, batches=1000)
        cluster.start(2, batches=1000, stop_at={"computing": [0]})
        cluster.tasks.wait_until_suspended("worker-2")
        cluster.tasks.wait_until_suspended("worker-0")
        cluster.tasks.resume("worker-0")
        # Now the others do without the third, and then, when its first gradient is
        # dropped, it and the second do without the chief, who applies their gradients
        # later.
        cluster.tasks.wait_for_output("worker-0", "at computing 6")
        cluster.tasks.wait_until_suspended("worker-0")
        cluster.tasks.resume("worker-2")
        cluster.tasks.wait_for_output("worker-2", "committed")
        cluster.tasks.wait_for_output("worker-1", "committed", occurrence=7)
        cluster.tasks.resume("worker-0")
        # The variables on both servers must have weights from the same sets of
        # gradients.
        stats = cluster.result(ending=range(3))["stats"]
    workers = [sorted(worker for worker, _ in pairs) for pairs in cluster.applied()]
    assert workers[:6] == [[0, 1]] * 6
    assert workers[6] == [1, 2]
    assert all(len(set(pair)) == 2 for pair in workers)
    dropped = [worker["late"] + worker["stale"] for worker in stats["workers"].values()]
    assert dropped[0] >= 1
    assert dropped[2] >= 1
    assert stats["voids"] == stats["expired"] == 0


@pytest.mark.parametrize(
    "run", [0, *(pytest.param(run, marks=pytest.mark.soak) for run in range(1, 30))]
)
def test_all_replicas_reach_a_common_last_step(run):
    del run
    with SyncReplicasCluster(3) as cluster:
        for worker in range(3):
            cluster.start(worker, batches=1000, last_step=10)
        result = cluster.result(ending=range(3))
    assert result["global_step"] == 10
