"""`fit` with SyncReplicas ends, whatever number of steps remains at the end.

One cluster trains again and again, each time with another number of steps, another
quorum, with and without backups, and with its incomplete last round applied or dropped.
"""

import dataclasses

import pytest
import sync_accounting
import worker_seams
from keras_sync_cluster import KerasSyncCluster, replay

pytestmark = [pytest.mark.ci, pytest.mark.one_version]

SLOW_SECS, FAST_SECS = 0.1, 0.01
LEASE_SECS = 3.0  # after this time a dead worker no longer counts
SUMS = ("updates", "applied", "late", "stale", "rejected", "voided")


@dataclasses.dataclass(frozen=True)
class Training:
    """The differences between the trainings."""

    quorum: int
    total: int
    steps: int
    flush_last: bool


def every_rest(num_workers):
    """All quorums and all remainders, also for trainings without any full round."""
    return [
        Training(quorum, total, steps, flush_last)
        for quorum in range(1, num_workers + 1)
        for total in sorted({quorum, num_workers})
        for steps in (*range(1, quorum), *range(2 * quorum, 3 * quorum))
        for flush_last in (True, False)
    ]


A_FEW = [
    Training(quorum=2, total=2, steps=5, flush_last=True),
    Training(quorum=2, total=2, steps=5, flush_last=False),
    Training(quorum=2, total=2, steps=4, flush_last=True),
    Training(quorum=2, total=2, steps=1, flush_last=True),
    Training(quorum=1, total=2, steps=3, flush_last=True),
]
A_FEW_OF_FOUR = [
    Training(quorum=4, total=4, steps=10, flush_last=True),
    Training(quorum=3, total=4, steps=7, flush_last=False),
    Training(quorum=4, total=4, steps=3, flush_last=True),
]


def cluster_for(trainings, num_workers, folder, **options):
    first, *further = map(dataclasses.asdict, trainings)
    return KerasSyncCluster(
        folder, num_workers, **first, epochs=1, further=further, **options
    )


def outputs_of(cluster, trainings):
    """The coordinator's output in each training."""
    outputs, rest = [], cluster.tasks.output("chief")
    for number in range(len(trainings)):
        output, _, rest = rest.partition(f"training {number} has ended")
        outputs.append(output)
    return outputs


def assert_ended_well(training, output, before, after, weights):
    """Returns how many gradients were dropped because they came too late."""
    stats, updates = after["stats"], len(weights) - 1
    sums = {name: stats[name] - before["stats"].get(name, 0) for name in SUMS}
    left = stats["pending"]
    sync_accounting.assert_identities(stats)
    assert stats["in_flight"] == 0
    assert stats["step"] == after["iterations"]
    assert after["iterations"] - before["iterations"] == sums["updates"] == updates
    # Gradients that the training before has dropped were discarded when this one began.
    assert sums["voided"] == before["stats"].get("pending", 0)
    dropped = sums["late"] + sums["stale"]
    assert sums["applied"] + left + dropped == training.steps
    assert sums["rejected"] == 0
    num_full, rest = divmod(sums["applied"] + left, training.quorum)
    assert left == (0 if training.flush_last else rest)
    message = f"dropped the {rest} gradients of a last incomplete round"
    assert output.count(message) == bool(rest and not training.flush_last)
    counts = [training.quorum] * num_full
    counts += [rest] if rest and training.flush_last else []
    replay(weights, counts)
    return dropped


def assert_all_ended_well(trainings, cluster, may_drop):
    """`may_drop`: gradients may be late even without backups."""
    for number in range(len(trainings)):
        cluster.tasks.wait_for_output("chief", f"training {number} has ended")
    result = cluster.result(exact=False)
    assert result["errors"] == [None] * len(trainings)
    before, begin = {"stats": {}, "iterations": 0}, 0
    outputs = outputs_of(cluster, trainings)
    for training, output, after in zip(
        trainings, outputs, result["trainings"], strict=True
    ):
        end = begin + after["iterations"] - before["iterations"]
        weights = result["weights"][begin : end + 1]
        dropped = assert_ended_well(training, output, before, after, weights)
        if training.total <= training.quorum and not may_drop:
            assert dropped == 0, training
        before, begin = after, end
    assert len(result["weights"]) == begin + 1


def or_every_rest(few, numbers):
    """Parametrizes with a few trainings, and by soak with all for these clusters."""
    soak = [pytest.mark.soak, pytest.mark.timeout(1200)]
    every = [pytest.param(every_rest(n), n, marks=soak, id=str(n)) for n in numbers]
    few = pytest.param(few, max(x.total for x in few), id="few")
    return pytest.mark.parametrize(("trainings", "num_workers"), [few, *every])


@or_every_rest(A_FEW, [1, 2, 3, 4])
def test_fit_ends_with_a_slow_worker_whatever_is_left_over(
    trainings, num_workers, tmp_path
):
    compute_secs = [FAST_SECS] * (num_workers - 1) + [SLOW_SECS]
    cluster = cluster_for(trainings, num_workers, tmp_path, compute_secs=compute_secs)
    with cluster:
        cluster.start()
        assert_all_ended_well(trainings, cluster, may_drop=False)


@or_every_rest(A_FEW_OF_FOUR, [2, 3, 4])
def test_fit_ends_with_a_dead_worker_whatever_is_left_over(
    trainings, num_workers, tmp_path
):
    # It dies in its first step. Of a few trainings the gate has learnt from the others
    # how long that takes; in the first of all it has the only permit.
    start_secs = 600.0 if trainings is A_FEW_OF_FOUR else LEASE_SECS
    last = num_workers - 1
    leases = {"lease_secs": LEASE_SECS, "start_secs": start_secs}
    with cluster_for(trainings, num_workers, tmp_path, **leases) as cluster:
        worker_seams.stop_at(tmp_path, "computing", last)
        cluster.start()
        cluster.tasks.wait_for_output(f"worker-{last}", "at computing")
        cluster.tasks.kill(f"worker-{last}")
        # A worker that was taken for dead, and was only busy, may come too late.
        assert_all_ended_well(trainings, cluster, may_drop=True)
