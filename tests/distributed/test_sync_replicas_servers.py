"""A parameter server is killed: bare sessions get an error, monitored ones recover."""

import time

import pytest
from sync_replicas_cluster import SyncReplicasCluster

# Of the gate, and of the global step.
servers = pytest.mark.parametrize(
    "server", ["ps-1", pytest.param("ps-0", marks=pytest.mark.ci)]
)


@pytest.mark.ci
@servers
def test_monitored_sessions_recover_when_a_killed_server_is_back(server, tmp_path):
    with SyncReplicasCluster(2) as cluster:
        cluster.start(0, batches=30, checkpoint_dir=str(tmp_path))
        cluster.start(1, batches=1000)
        cluster.tasks.wait_for_output("worker-0", "ran 4")
        cluster.tasks.kill(server)
        cluster.tasks.restart(server)
        result = cluster.result(ending=(0, 1), same_gate=server != "ps-1")
    # The batch during which it died may have been applied and saved before its end.
    assert 30 <= result["global_step"] <= 31
    assert cluster.num_generations() >= 2


@servers
def test_bare_session_gets_an_error_in_seconds_when_a_server_is_killed(server):
    with SyncReplicasCluster(1) as cluster:
        cluster.start(0, batches=100000, bare=True)
        cluster.tasks.wait_for_output("worker-0", "ran 4")
        cluster.tasks.kill(server)
        killed = time.monotonic()
        cluster.tasks.wait_for_output("worker-0", "failed with")
        assert time.monotonic() - killed < 10
