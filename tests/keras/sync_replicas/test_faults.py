"""Synchronous Keras trainings whose tasks are slow, cut off, or killed."""

import signal
import time

import keras_sync_replicas as helpers
import network_namespaces
import numpy as np
import pytest
import worker_seams
from keras_sync_cluster import KerasSyncCluster

pytestmark = [pytest.mark.ci, pytest.mark.one_version]

SLOW = 2
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


CUT_OFF = 2


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
        tmp_path, 3, namespace, loop="custom", steps=120, lease_secs=2.0, start_secs=2.0
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


# This also covers first steps, in which workers may be killed.
LEASES = {"lease_secs": 5.0, "start_secs": 5.0}


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


@pytest.mark.parametrize("per_execution", [1, pytest.param(16, marks=pytest.mark.slow)])
def test_tasks_stop_for_a_while_and_workers_and_coordinator_come_back(
    per_execution, tmp_path
):
    with KerasSyncCluster(
        tmp_path,
        2,
        steps=32,
        steps_per_execution=per_execution,
        backup=str(tmp_path / "backup"),
        seams=False,
        **LEASES,
    ) as cluster:
        cluster.start()
        cluster.wait_for_updates()
        for name in ("worker-1", "ps-0", "ps-1", "chief"):
            cluster.tasks.stop_for_a_while(name)
            cluster.wait_for_updates()
        for signum in (signal.SIGTERM, signal.SIGKILL):
            cluster.tasks.kill("worker-1", signum)
            cluster.tasks.restart("worker-1")
            cluster.wait_for_stats(lambda stats: stats["live"] == 2)
            cluster.wait_for_updates()
        cluster.tasks.kill("chief")
        cluster.start()
        cluster.wait_for_updates()
        cluster.end()
        cluster.result()


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


def test_killed_coordinator_goes_on_from_its_backup_with_living_servers(tmp_path):
    quorum, steps, epochs = 2, 8, 5
    with KerasSyncCluster(
        tmp_path,
        num_workers=quorum,
        steps=steps,
        epochs=epochs,
        backup=str(tmp_path / "backup"),
    ) as cluster:
        cluster.start()
        cluster.tasks.wait_for_output("chief", "epoch 1")
        # Closures of the dead coordinator may go on, but must not matter.
        cluster.wait_until_at("half_pushed", worker=1)
        cluster.tasks.kill("chief")
        begun = cluster.num_epochs()
        cluster.start()
        worker_seams.go_on(tmp_path, "half_pushed", worker=1)
        result = cluster.result()
        ended = cluster.num_epochs() - begun
    assert result["iterations"] == epochs * steps // quorum
    # Not everything is repeated: only the epoch that was interrupted, and those after
    # it.
    assert 0 < ended < epochs
    assert result["stats"]["updates"] == ended * steps // quorum
    # Nor does it continue with new weights: all of them were trained before.
    untrained = helpers.make_model().trainable_variables
    for weights, new in zip(result["weights"][0], untrained, strict=True):
        assert not np.allclose(weights, np.asarray(new))


@pytest.mark.parametrize(
    ("index", "loop", "per_execution"),
    [
        (0, "fit", 1),
        (1, "custom", 1),
        pytest.param(0, "fit", 16, marks=pytest.mark.slow),
        pytest.param(1, "fit", 1, marks=pytest.mark.soak),
        pytest.param(0, "custom", 1, marks=pytest.mark.soak),
    ],
)
def test_killed_parameter_server_is_an_error_in_seconds(
    index, loop, per_execution, tmp_path
):
    with KerasSyncCluster(
        tmp_path,
        2,
        loop=loop,
        steps=32,
        steps_per_execution=per_execution,
        seams=False,
    ) as cluster:
        cluster.start()
        cluster.wait_for_updates(1)
        cluster.tasks.kill(f"ps-{index}")
        killed = time.monotonic()
        cluster.tasks.wait_for_output("chief", "raised ")
        elapsed = time.monotonic() - killed
        result = cluster.result(exact=False)
    assert elapsed < 10
    (error,) = result["errors"]
    device = f"/job:ps/replica:0/task:{index}"
    lost = f"SyncReplicas has lost the parameter server {device}, and training cannot"
    assert error.startswith(f"UnavailableError: {lost}")
    assert lost in cluster.tasks.output("chief")
