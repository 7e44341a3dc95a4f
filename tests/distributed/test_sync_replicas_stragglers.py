"""A slow or stuck replica keeps nobody idle, unless training is strict.

TensorFlow 2.21's own class did this in similar scenarios. If one of two was stuck after
a step, the other made its 8 steps of 8 at once. If one of two took 1.5 s for each
gradient, with four gradients a step, the quick one gave 40 in 12 s; with equal shares
it was 7.
"""

import time

import pytest
from sync_replicas_cluster import SyncReplicasCluster

# This is longer than any test.
LEASE_SECS = 600.0


@pytest.mark.parametrize(
    ("point", "step", "batches"),
    [
        ("computing", 1, 8),  # It is not known yet how long a step takes.
        # It holds a permit, has pushed a half, or holds nothing.
        pytest.param("computing", 12, 60, marks=pytest.mark.ci),
        pytest.param("half_pushed", 12, 60, marks=pytest.mark.ci),
        pytest.param("committed", 12, 60, marks=pytest.mark.ci),
    ],
)
def test_replica_that_is_stuck_does_not_keep_the_other_waiting(point, step, batches):
    with SyncReplicasCluster(2, lease_secs=LEASE_SECS, strict=False) as cluster:
        cluster.start(1, batches=1000, stop_at={point: [step]})
        cluster.tasks.wait_until_ready("worker-1")
        cluster.start(0, batches=batches, compute_secs=0.05)
        cluster.tasks.wait_until_suspended("worker-1")
        stuck = time.monotonic()
        stats = cluster.result()["stats"]
        assert time.monotonic() - stuck < 20
    chief, _ = stats["workers"].values()
    assert chief["contributed"] + chief["late"] + chief["stale"] == batches
    assert stats["expired"] == 0
    assert stats["voids"] == (point == "half_pushed")


@pytest.mark.ci
def test_quick_replica_gives_more_to_a_step_than_a_slow_one():
    with SyncReplicasCluster(
        2, quorum=4, lease_secs=LEASE_SECS, strict=False
    ) as cluster:
        cluster.start(0, batches=40)
        cluster.start(1, batches=1000, compute_secs=1.0)
        stats = cluster.result(ending=(0, 1))["stats"]
    chief, other = stats["workers"].values()
    assert chief["contributed"] >= 38
    # It would be as many in strict mode: see `test_sync_replicas_exact`.
    assert other["contributed"] <= 20
    assert stats["expired"] == stats["voids"] == 0
