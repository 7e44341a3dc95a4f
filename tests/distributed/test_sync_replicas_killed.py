"""A replica is killed (SIGKILL) in its step, and comes back or does not.

TensorFlow 2.21's own class did this in the same scenarios. When one of two was killed
while it computed, the chief made no step in the 30 s until it was back. When it was
killed between its push and its token, it left a surplus token: the chief went on alone
meanwhile, and its 60 batches made 43 updates in one run and 57 in another.
"""

import time

import pytest
from sync_replicas_cluster import POINTS, SyncReplicasCluster

pytestmark = pytest.mark.one_version

BATCHES = 10
points = pytest.mark.parametrize(
    "point", [*POINTS, pytest.param("waiting", marks=pytest.mark.ci)]
)


def _kill_at(cluster, point, step=3):
    """Kills worker-1 in its fourth step, or another one; returns the time."""
    waiting = point == "waiting"
    cluster.start(0, batches=BATCHES, stop_at={"computing": [3] if waiting else []})
    cluster.start(1, batches=1000, stop_at={point: [step]})
    if waiting:
        cluster.tasks.wait_for_output("worker-1", "waiting 3")
    else:
        cluster.tasks.wait_until_suspended("worker-1")
    cluster.tasks.kill("worker-1")
    if waiting:
        cluster.tasks.wait_until_suspended("worker-0")
        cluster.tasks.resume("worker-0")
    return time.monotonic()


@pytest.mark.ci
@points
def test_killed_replica_delays_the_others_by_its_lease_and_no_more(point):
    lease_secs = 2.0
    with SyncReplicasCluster(2, lease_secs=lease_secs) as cluster:
        killed = _kill_at(cluster, point)
        result = cluster.result()
        elapsed = time.monotonic() - killed
    stats = result["stats"]
    chief, dead = stats["workers"].values()
    assert elapsed < lease_secs + 3
    assert (stats["live"], chief["live"], dead["live"]) == (1, True, False)
    assert chief["contributed"] == BATCHES
    assert dead["contributed"] == 3 + (point == "waiting")
    assert stats["voids"] == stats["aborted"] == (point == "half_pushed")
    assert chief["expired"] == 0


@pytest.mark.ci
def test_replica_killed_in_its_first_step_delays_the_others_by_no_more():
    # A first step may take `start_secs` while it is not known how long others take.
    with SyncReplicasCluster(2, lease_secs=2.0, start_secs=600.0) as cluster:
        killed = _kill_at(cluster, "computing", step=0)
        stats = cluster.result()["stats"]
        elapsed = time.monotonic() - killed
    chief, dead = stats["workers"].values()
    assert elapsed < 60
    assert (chief["contributed"], dead["contributed"]) == (BATCHES, 0)
    assert (stats["voids"], dead["expired"]) == (0, 1)


@points
def test_replica_that_comes_back_takes_the_place_of_the_killed_one_at_once(point):
    with SyncReplicasCluster(2, lease_secs=60.0) as cluster:
        killed = _kill_at(cluster, point)
        cluster.start(1, batches=1000, first_batch=1000)
        result = cluster.result(ending=(0, 1))
        elapsed = time.monotonic() - killed
    stats = result["stats"]
    chief, other = stats["workers"].values()
    assert elapsed < 20
    assert stats["expired"] == 0
    assert chief["contributed"] == BATCHES
    assert stats["voids"] == stats["aborted"] == (point == "half_pushed")
    assert stats["voided"] == chief["voided"] + other["voided"]
    # Each round that was not void has gradients of both.
    assert stats["updates"] == BATCHES - chief["voided"]
