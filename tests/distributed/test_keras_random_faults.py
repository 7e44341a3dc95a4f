"""A short synchronous Keras training under random kills, stops and restarts."""

import fault_schedules
import pytest
from keras_sync_cluster import KerasSyncCluster

LEASE_SECS = 4.0
NUM_SEEDS = 50


@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, NUM_SEEDS))],
)
def test_no_schedule_of_faults_loses_or_repeats_a_gradient(seed, tmp_path):
    with KerasSyncCluster(
        tmp_path,
        num_workers=3,
        loop=("fit", "custom")[seed % 2],
        quorum=2 + seed % 3 // 2,
        lease_secs=LEASE_SECS,
        start_secs=LEASE_SECS,
    ) as cluster:
        cluster.start()
        cluster.wait_for_updates(1)
        workers, servers = map(cluster.tasks.names, ("worker", "ps"))
        faults = fault_schedules.schedule(seed, workers, servers, LEASE_SECS)
        print(faults)
        fault_schedules.run(faults, cluster.tasks)
        cluster.tasks.wait_until_ready(*workers, *servers)
        cluster.wait_for_updates()
        cluster.end()
        cluster.result()
