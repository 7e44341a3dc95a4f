"""A replica sends a gradient that must not be applied: only this replica fails.

TensorFlow's own accumulators accept negative indices, sum unsorted ones wrongly, and
end the parameter server's process for a step that is not a scalar.
"""

import time

import pytest
from sync_replicas_cluster import SyncReplicasCluster


@pytest.mark.parametrize(
    "place",
    [0, 1, pytest.param(2, marks=pytest.mark.soak)],
    ids=["dense", "indices", "values"],
)
def test_push_that_is_refused_for_one_of_two_variables_voids_the_round(place):
    # It is not the lease that ends: the process leaves when the error ends it.
    with SyncReplicasCluster(2, lease_secs=600.0) as cluster:
        cluster.start(0, batches=10)
        cluster.start(1, batches=1000, malformed_push=[3, place])
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


def test_nonfinite_gradient_is_dropped_and_counted_where_that_is_asked_for():
    with SyncReplicasCluster(2, reject_nonfinite=True) as cluster:
        cluster.start(0, batches=10)
        cluster.start(1, batches=1000, nan_at=3)
        result = cluster.result(ending=(0, 1))
    stats = result["stats"]
    chief, other = stats["workers"].values()
    assert (chief["rejected"], other["rejected"]) == (0, 1)
    assert stats["voids"] == stats["expired"] == 0
    # It gave the next batch's gradient instead.
    assert cluster.applied()[3] in ([(0, 3), (1, 4)], [(1, 4), (0, 3)])
    assert result["global_step"] == 10
