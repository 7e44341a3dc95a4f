"""A worker of a synchronous Keras training is cut off from the network for a while.

It does not die, and nobody is told: connections stay open, and its messages arrive when
the others have long gone on.
"""

import network_namespaces
import pytest
import worker_seams
from keras_sync_cluster import KerasSyncCluster

pytestmark = pytest.mark.one_version

CUT_OFF = 2
LEASES = {"lease_secs": 2.0, "start_secs": 2.0}


@pytest.fixture
def namespace():
    with network_namespaces.namespace() as namespace:
        yield namespace


def counts_of(stats, worker):
    return stats["workers"][f"/job:worker/replica:0/task:{worker}"]


@pytest.mark.soak
@pytest.mark.parametrize("point", ["computing", "half_pushed"])
def test_training_goes_on_without_a_worker_cut_off_whose_gradient_comes_too_late(
    point, namespace, tmp_path
):
    # With few steps an epoch would end before the cut, and all would wait for the one
    # step.
    with KerasSyncCluster(
        tmp_path, 3, namespace, loop="custom", steps=120, **LEASES
    ) as cluster:
        cluster.start()
        cluster.tasks.wait_for_output("chief", "epoch ")
        cluster.wait_until_at(point, CUT_OFF)
        namespace.cut()
        before = cluster.stats()
        worker_seams.go_on(tmp_path, point, CUT_OFF)
        cut_off = cluster.wait_for_stats(
            lambda stats: not counts_of(stats, CUT_OFF)["live"]
        )
        cluster.wait_for_stats(lambda stats: stats["updates"] >= cut_off["updates"] + 3)
        namespace.heal()
        healed = cluster.wait_for_stats(lambda stats: counts_of(stats, CUT_OFF)["live"])
        cluster.end()
        cluster.result()
    mine, then = (counts_of(stats, CUT_OFF) for stats in (healed, before))
    assert cut_off["voids"] - before["voids"] == (point == "half_pushed")
    assert counts_of(cut_off, CUT_OFF)["contributed"] == then["contributed"]
    assert mine["expired"] > then["expired"]
    if point == "computing":
        assert mine["late"] + mine["stale"] > then["late"] + then["stale"]
