"""Events of the gates of real clusters pass the checker of simulated gates."""

import re

import native_builds
import pytest
from keras_sync_cluster import KerasSyncCluster
from sync_replicas_cluster import SyncReplicasCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def _killed_replica(folder):
    """A replica dies with half of its gradient pushed, and comes back."""
    with SyncReplicasCluster(2, lease_secs=2.0) as cluster:
        cluster.start(0, batches=10)
        cluster.start(1, batches=1000, stop_at={"half_pushed": [3]})
        cluster.tasks.wait_until_suspended("worker-1")
        cluster.tasks.kill("worker-1")
        cluster.start(1, batches=1000, first_batch=3)
        cluster.result()  # the other may be back when that is over


def _stuck_replica(folder):
    """A replica is stuck, and the others go on with spares."""
    with SyncReplicasCluster(2, strict=False) as cluster:
        cluster.start(0, batches=20)
        cluster.start(1, batches=1000, stop_at={"computing": [3]})
        assert cluster.tasks.wait("worker-0") == 0, cluster.tasks.output("worker-0")


def _killed_server(folder):
    """The server without the gate dies, and a second generation follows."""
    with SyncReplicasCluster(2) as cluster:
        cluster.start(0, batches=30, checkpoint_dir=str(folder))
        cluster.start(1, batches=1000)
        cluster.tasks.wait_for_output("worker-0", "waiting 5")
        cluster.tasks.kill("ps-0")
        cluster.tasks.restart("ps-0")
        cluster.result(ending=(0, 1))


def _keras(folder):
    """A worker of a Keras training dies between two pushes."""
    with KerasSyncCluster(folder, num_workers=2, lease_secs=2.0) as cluster:
        cluster.start()
        cluster.kill_at("half_pushed", 1)
        cluster.wait_for_updates()
        cluster.tasks.restart("worker-1")
        cluster.end()
        cluster.result()


@pytest.mark.parametrize(
    "train",
    [_killed_replica, _stuck_replica, _killed_server, _keras],
    ids=lambda train: train.__name__.strip("_"),
)
def test_events_of_a_cluster_keep_the_rules(train, tmp_path, monkeypatch):
    folder = tmp_path / "events"
    folder.mkdir()
    monkeypatch.setenv("TF_SYNCREP_GATE_EVENTS", str(folder))
    (tmp_path / "work").mkdir()
    train(tmp_path / "work")
    logs = sorted(folder.glob("*.events"))
    output = native_builds.run(native_builds.simulator() / "check_events", *logs)
    counts = re.findall(r"(\d+) events, (\d+) updates, \d+ voids: all well", output)
    assert len(counts) == len(logs), output
    assert any(int(updates) >= 3 for _, updates in counts), output
