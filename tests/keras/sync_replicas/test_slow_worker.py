"""A worker of a synchronous Keras training is ten times as slow as the others.

Its speed does not depend on the machine: it is held in its step until the others have
made their updates, and is judged by the gate's counters.
"""

import pytest
import worker_seams
from keras_sync_cluster import KerasSyncCluster

pytestmark = [pytest.mark.ci, pytest.mark.one_version]

SLOW, FAST = 2, 0
# One step of the slow worker lasts as long as this many updates of the others.
TIMES_AS_SLOW = 10
NUM_SLOW_STEPS = 2


def gradients_of(worker, stats):
    """The committed gradients of a worker, and those that were dropped."""
    counts = stats["workers"][f"/job:worker/replica:0/task:{worker}"]
    return counts["contributed"], counts["late"] + counts["stale"]


def assert_no_fault(stats):
    assert stats["expired"] == stats["voids"] == stats["aborted"] == 0
    assert stats["live"] == 3


@pytest.mark.parametrize(
    ("loop", "per_execution"),
    [
        ("fit", 1),
        pytest.param("fit", 4, marks=pytest.mark.slow),
        pytest.param("custom", 1, marks=pytest.mark.soak),
    ],
)
def test_without_backups_the_slow_worker_keeps_nobody_idle(
    loop, per_execution, tmp_path
):
    # These are more steps than the test awaits: the end of an epoch waits for the slow
    # worker, and the others do not wait while this process looks.
    steps = 2 * 3 * (NUM_SLOW_STEPS + 2) * TIMES_AS_SLOW
    with KerasSyncCluster(
        tmp_path,
        num_workers=3,
        quorum=3,
        total=3,
        loop=loop,
        steps=steps,
        epochs=1,
        spares=True,
        steps_per_execution=per_execution,
    ) as cluster:
        # Its first step may begin when the others could have made most of the updates.
        for worker in range(3):
            worker_seams.stop_at(tmp_path, "computing", worker)
        cluster.start()
        cluster.tasks.wait_for_output(f"worker-{SLOW}", "at computing")
        for worker in range(3):
            worker_seams.go_on(tmp_path, "computing", worker)
        # By then it is known how long a step takes.
        cluster.wait_for_updates(TIMES_AS_SLOW)
        for _ in range(NUM_SLOW_STEPS):
            spares = cluster.stats()["spares"]
            cluster.wait_until_at("computing", SLOW)
            before = cluster.stats()
            least = before["updates"] + TIMES_AS_SLOW
            after = cluster.wait_for_stats(
                lambda stats, least=least: stats["updates"] >= least
            )
            assert gradients_of(SLOW, after) == gradients_of(SLOW, before)
            assert after["spares"] > spares
            worker_seams.go_on(tmp_path, "computing", SLOW)
            dropped = gradients_of(SLOW, before)[1]
            cluster.wait_for_stats(
                lambda stats, dropped=dropped: gradients_of(SLOW, stats)[1] > dropped
            )
        result = cluster.result()
    stats = result["stats"]
    assert_no_fault(stats)
    assert stats["applied"] + stats["late"] + stats["stale"] == steps


@pytest.mark.parametrize(
    "loop", [pytest.param("fit", marks=pytest.mark.soak), "custom"]
)
def test_with_a_backup_the_others_go_on_and_late_gradients_are_dropped(loop, tmp_path):
    steps = 8 * NUM_SLOW_STEPS * TIMES_AS_SLOW
    with KerasSyncCluster(
        tmp_path, num_workers=3, quorum=2, total=3, loop=loop, steps=steps, epochs=1
    ) as cluster:
        for worker in range(3):
            worker_seams.stop_at(tmp_path, "computing", worker)
        cluster.start()
        # Its first step may begin when the others could have made all the updates.
        cluster.tasks.wait_for_output(f"worker-{SLOW}", "at computing")
        for worker in range(SLOW):
            worker_seams.go_on(tmp_path, "computing", worker)
        for number in range(1, NUM_SLOW_STEPS + 1):
            cluster.tasks.wait_for_output(
                f"worker-{SLOW}", "at computing", occurrence=number
            )
            cluster.wait_for_updates(TIMES_AS_SLOW)
            # Until this one goes on, the round has all that it needs, and cannot end:
            # so the slow one gets no permit for another step.
            cluster.wait_until_at("admitted", FAST)
            before = cluster.wait_for_stats(
                lambda stats: stats["pending"] == stats["in_flight"] == 1
            )
            assert gradients_of(SLOW, before) == (0, number - 1)
            worker_seams.go_on(tmp_path, "computing", SLOW)
            after = cluster.wait_for_stats(
                lambda stats, dropped=number: gradients_of(SLOW, stats) == (0, dropped)
            )
            assert after["updates"] == before["updates"]
            if number < NUM_SLOW_STEPS:
                worker_seams.stop_at(tmp_path, "computing", SLOW)
            worker_seams.go_on(tmp_path, "admitted", FAST)
        result = cluster.result()
    stats = result["stats"]
    assert_no_fault(stats)
    assert stats["applied"] + stats["late"] + stats["stale"] == steps
