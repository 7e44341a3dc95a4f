"""A replica sends a gradient that must not be applied: only this replica fails.

TensorFlow's own accumulators accept negative indices, sum unsorted ones wrongly, and
end the parameter server's process for a step that is not a scalar.
"""

import time

from sync_replicas_cluster import SyncReplicasCluster


def test_push_that_is_refused_for_one_of_two_variables_voids_the_round():
    # It is not the lease that ends: the process leaves when the error ends it.
    with SyncReplicasCluster(2, lease_secs=600.0) as cluster:
        cluster.start(0, batches=10)
        cluster.start(1, batches=1000, malformed_push=3)
        assert cluster.tasks.wait("worker-1") == 1
        refused = time.monotonic()
        assert "InvalidArgumentError" in cluster.tasks.output("worker-1")
        result = cluster.result()
        assert time.monotonic() - refused < 20
    stats = result["stats"]
    chief, other = stats["workers"].values()
    assert stats["voids"] == stats["aborted"] == 1
    assert other["expired"] == 0
    # The gradient of the chief came in the void round, or too late for it.
    assert chief["voided"] + chief["stale"] == 1
    assert (chief["contributed"] + chief["stale"], other["contributed"]) == (10, 3)
