"""Two optimizers in one graph, as a GAN has, and replicas in several processes."""

import numpy as np
import programs
import sync_replicas_twin as twin
from sync_replicas_cluster import CHIEF, SyncReplicasCluster


def test_two_optimizers_that_take_turns_are_exact_each():
    with SyncReplicasCluster(2) as cluster:
        for worker in range(2):
            cluster.start(worker, batches=10, two_optimizers=True)
        for worker in range(2):
            assert cluster.tasks.wait(f"worker-{worker}") == 0
        result = programs.result_in(cluster.tasks.output(CHIEF))
    steps = [[twin.batch(0, b), twin.batch(1, b)] for b in range(10)]
    for weights, twins in zip(result["weights"], twin.train(steps), strict=True):
        np.testing.assert_allclose(weights, twins, rtol=1e-12)
    # They share the global step, and have gates of their own.
    assert result["global_step"] == 2 * 10
    assert result["stats"]["updates"] == 10
    assert result["stats"]["voids"] == result["stats"]["stale"] == 0
