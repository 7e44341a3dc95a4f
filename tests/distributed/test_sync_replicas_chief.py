"""The chief ends, or is killed, and another takes its place.

TensorFlow 2.21's own class, run in the same scenarios: the end took the chief 120.0 s,
and a new chief against the same parameter servers failed with CancelledError,
"FIFOQueue 'sync_token_q' is closed".
"""

import pytest
from sync_replicas_cluster import POINTS, SyncReplicasCluster


@pytest.mark.ci
@pytest.mark.parametrize("point", POINTS)
def test_killed_chief_goes_on_from_its_checkpoint(point, tmp_path):
    with SyncReplicasCluster(2) as cluster:
        folder = str(tmp_path)
        cluster.start(0, batches=100, checkpoint_dir=folder, stop_at={point: [4]})
        cluster.start(1, batches=1000)
        cluster.tasks.wait_until_suspended("worker-0")
        cluster.tasks.kill("worker-0")
        cluster.start(0, batches=6, first_batch=100, checkpoint_dir=folder)
        result = cluster.result(ending=(0, 1))
    stats = result["stats"]
    assert cluster.num_generations() == 2
    # Four steps were saved and six were made anew, each with gradients of both.
    assert result["global_step"] == 4 + 6
    workers = [sorted(worker for worker, _ in pairs) for pairs in cluster.applied()]
    assert workers == [[0, 1]] * 10
    assert stats["expired"] == 0
    # The chief was pushing one gradient, and the other gave some of the next round
    # meanwhile.
    assert stats["voids"] <= (2 if point == "half_pushed" else 1)
    if point == "half_pushed":
        assert stats["aborted"] == 1


def test_chief_ends_at_once_and_another_begins_anew_on_the_same_servers():
    with SyncReplicasCluster(2) as cluster:
        for worker in range(2):
            cluster.start(worker, batches=5)
        first = cluster.result(ending=(0, 1))
        assert first["close_secs"] < 2
        # The other is up before the new chief, and waits for it.
        cluster.start(1, batches=1000, first_batch=100)
        cluster.tasks.wait_until_ready("worker-1")
        cluster.start(0, batches=7, first_batch=100)
        second = cluster.result(ending=(0, 1))
    assert first["global_step"] == 5
    assert second["global_step"] == 7
    assert second["stats"]["updates"] == 5 + 7
    assert second["stats"]["voids"] == 0
