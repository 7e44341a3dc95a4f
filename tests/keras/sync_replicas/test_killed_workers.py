"""Workers of a synchronous Keras training are killed; some come back, some do not.

TensorFlow's coordinator runs the closures of a lost worker again, elsewhere or when it
is back. Whatever the worker was doing, no gradient counts twice, and none in part.
"""

import pytest
import worker_seams
from keras_sync_cluster import KerasSyncCluster

pytestmark = [pytest.mark.ci, pytest.mark.one_version]

# This also covers first steps, in which workers may be killed.
LEASES = {"lease_secs": 5.0, "start_secs": 5.0}


# At the other points two are killed below.
@pytest.mark.parametrize(
    ("loop", "points"),
    [
        pytest.param(
            *("fit", ("admitted", "pushed", "committed")), marks=pytest.mark.slow
        ),
        pytest.param("fit", worker_seams.POINTS, marks=pytest.mark.soak),
        pytest.param("custom", worker_seams.POINTS, marks=pytest.mark.soak),
    ],
)
def test_worker_killed_at_each_point_comes_back_and_nothing_counts_twice(
    loop, points, tmp_path
):
    # A shorter epoch might be at its end, without a step for the worker that has to
    # wait below.
    with KerasSyncCluster(
        tmp_path, num_workers=2, loop=loop, steps=120, shards=2, **LEASES
    ) as cluster:
        cluster.start()
        cluster.wait_for_updates()
        for point in points:
            cluster.kill_at(point, worker=1)
            cluster.tasks.restart("worker-1")
            cluster.wait_for_updates()
        # It is killed while it waits: the other one keeps the round from being full.
        cluster.wait_until_at("computing", worker=0)
        cluster.wait_for_stats(
            lambda stats: stats["pending"] == 1 and stats["in_flight"] == 0
        )
        cluster.tasks.kill("worker-1")
        worker_seams.go_on(tmp_path, "computing", worker=0)
        cluster.tasks.restart("worker-1")
        cluster.wait_for_updates()
        cluster.end()
        result = cluster.result()
    stats = result["stats"]
    # These were in the middle of a contribution, so their rounds were void.
    in_part = len(set(points) & set(worker_seams.ADMITTED))
    assert in_part <= stats["voids"] <= in_part + stats["expired"]
    assert stats["voids"] == stats["aborted"]


@pytest.mark.slow
def test_execution_whose_third_step_was_cut_short_is_made_again_as_a_whole(tmp_path):
    """Its first two steps count twice, and nothing counts in part."""
    with KerasSyncCluster(
        tmp_path, num_workers=2, steps=120, steps_per_execution=4, **LEASES
    ) as cluster:
        worker_seams.stop_at(tmp_path, "computing", worker=1)
        cluster.start()
        cluster.tasks.wait_for_output("worker-1", "at computing")
        for _ in range(2):
            cluster.wait_until_at("committed", worker=1, past="computing")
            cluster.wait_until_at("computing", worker=1, past="committed")
        cluster.tasks.kill("worker-1")
        worker_seams.go_on(tmp_path, "computing", worker=1)
        cluster.tasks.restart("worker-1")
        cluster.wait_for_updates()
        cluster.end()
        result = cluster.result()
    stats = result["stats"]
    assert stats["voids"] == stats["aborted"] == 0
    made = sum(stats[fate] for fate in ("admitted", "late", "stale", "rejected"))
    assert made == 120 * cluster.num_epochs() + 2


@pytest.mark.parametrize(
    "loop", [pytest.param("fit", marks=pytest.mark.soak), "custom"]
)
def test_training_goes_on_without_two_killed_workers_until_they_are_back(
    loop, tmp_path
):
    with KerasSyncCluster(tmp_path, num_workers=3, loop=loop, **LEASES) as cluster:
        cluster.start()
        cluster.wait_for_updates()
        cluster.kill_at("computing", worker=2)
        cluster.kill_at("half_pushed", worker=1)
        cluster.wait_for_updates(6)
        cluster.tasks.start("worker-1")
        cluster.tasks.restart("worker-2")
        cluster.wait_until_at("committed", worker=1)
        worker_seams.go_on(tmp_path, "committed", worker=1)
        cluster.wait_until_at("committed", worker=2)
        worker_seams.go_on(tmp_path, "committed", worker=2)
        cluster.end()
        result = cluster.result()
    # Not all need be live: on a busy machine the end may take longer than a lease.
    assert result["stats"]["voids"] >= 1
