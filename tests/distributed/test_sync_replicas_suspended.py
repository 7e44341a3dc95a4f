"""A replica is stopped (SIGSTOP) past its lease in its step, and goes on.

Nothing that it still does may count or do harm, since the others have gone on without
it. With TensorFlow's own class they wait for as long as it is stopped.
"""

import time

import pytest
from sync_replicas_cluster import POINTS, SyncReplicasCluster

pytestmark = [pytest.mark.ci, pytest.mark.one_version]


@pytest.mark.parametrize("point", [*POINTS, "waiting"])
def test_replica_stopped_past_its_lease_comes_back_and_does_no_harm(point):
    # On a busy machine a living replica may be silent for more than a second.
    lease_secs = 2.0
    with SyncReplicasCluster(2, lease_secs=lease_secs) as cluster:
        # The chief gives one gradient a round beside the other's, then two alone, and
        # stops before the first of a round, so that there is room for the other's. If
        # the other's gradient does not come, the chief's fourth is in a round with its
        # next one. If the round is void, or the other's was committed, it is alone.
        last = 13 if point == "computing" else 14
        cluster.start(0, batches=20, stop_at={"computing": [3, last]})
        cluster.start(1, batches=1000, stop_at={point: [3]})
        cluster.tasks.wait_until_suspended("worker-0")
        if point == "waiting":
            cluster.tasks.wait_for_output("worker-1", "waiting 3")
            cluster.tasks.suspend("worker-1")
        cluster.tasks.wait_until_suspended("worker-1")
        stopped = time.monotonic()
        cluster.tasks.resume("worker-0")
        # It goes on alone once the lease is over.
        cluster.tasks.wait_for_output("worker-0", f"at computing {last}")
        assert time.monotonic() - stopped < lease_secs + 3
        cluster.tasks.wait_until_suspended("worker-0")
        cluster.tasks.resume("worker-1")
        # The gradient that it held is dropped; its next one counts again.
        count = 4 + (point == "waiting")
        cluster.tasks.wait_for_output("worker-1", "committed", occurrence=count)
        cluster.tasks.resume("worker-0")
        result = cluster.result(ending=(0, 1))
    stats = result["stats"]
    chief, other = stats["workers"].values()
    assert chief["contributed"] == 20
    assert other["expired"] == 1
    assert other["stale"] == (point != "half_pushed")
    assert stats["voids"] == stats["aborted"] == (point == "half_pushed")
