"""Tables that grow on clusters whose tasks are stopped, killed, and out of disk."""

import json
import pathlib
import resource
import sys
import time

import clusters
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("dynamic_embedding_faults_program.py")
NUM_KEYS = 24_000


class Coordinator:
    """The program, doing something."""

    def __init__(self, cluster, what, folder):
        self.cluster, self.folder = cluster, folder
        command = [sys.executable, str(PROGRAM), json.dumps(what)]
        cluster.start("chief", [*command, json.dumps(str(folder))])

    def await_request(self, line):
        self.cluster.wait_for_output("chief", line)

    def done(self, line):
        (self.folder / line.replace(" ", "_").lower()).touch()

    def result(self):
        assert self.cluster.wait("chief") == 0, self.cluster.output("chief")
        return programs.result_in(self.cluster.output("chief"))


def test_gradient_of_a_worker_that_was_stopped_never_reaches_the_new_key(tmp_path):
    with clusters.Cluster(2, num_ps=1, env=programs.environment()) as cluster:
        coordinator = Coordinator(cluster, "suspended", tmp_path)
        coordinator.await_request("STOP IT")
        cluster.suspend(worker_at_lookup(cluster))
        coordinator.done("STOP IT")
        coordinator.await_request("HANDED OUT")
        coordinator.done("HANDED OUT")
        cluster.resume(worker_at_lookup(cluster))
        result = coordinator.result()
    assert result["keys"] == [[3, 4], [3, 4]]
    assert result["has_learned"]
    assert result["same_vectors"]
    assert result["same_slots"]
    before, after = result["stats"]
    assert (before["evicted"], before["dropped"]) == (2, 0)
    assert after == {**before, "dropped": 2}


def worker_at_lookup(cluster):
    """The one that has looked up; its server may have answered before it says so."""
    deadline = time.monotonic() + clusters.DEADLINE_SECS
    while True:
        for worker in cluster.names("worker"):
            if "at lookup" in cluster.output(worker):
                return worker
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """What came of a program whose disk and server failed, and of the next one."""
    folder = tmp_path_factory.mktemp("faults")
    with clusters.Cluster(2, num_ps=2, env=programs.environment()) as cluster:
        coordinator = Coordinator(cluster, "failing", folder)
        coordinator.await_request("FILL THE DISK")
        limits = resource.prlimit(cluster.pid("ps-1"), resource.RLIMIT_FSIZE)
        for what, limit in (("FILL THE DISK", 4096), ("MAKE ROOM", limits[0])):
            coordinator.await_request(what)
            resource.prlimit(
                cluster.pid("ps-1"), resource.RLIMIT_FSIZE, (limit, limits[1])
            )
            coordinator.done(what)
        coordinator.await_request("KILL A SERVER")
        cluster.kill("ps-0")
        killed = time.monotonic()
        coordinator.done("KILL A SERVER")
        failed = coordinator.result()
        secs = time.monotonic() - killed
        cluster.restart("ps-0")
        restored = Coordinator(cluster, "restoring", folder).result()
    return failed, secs, restored


def test_full_disk_is_an_error_and_training_goes_on(faults):
    failed, _, restored = faults
    assert "too large" in failed["full"]
    assert len(failed["before"]["keys"]) == NUM_KEYS
    assert failed["trained"]["keys"] == sorted({*failed["before"]["keys"], 5, 6})
    assert failed["trained"]["sums"] != failed["before"]["sums"]
    assert failed["saved"]["keys"] == sorted({*failed["trained"]["keys"], 8})
    assert restored["restored"] == failed["saved"]


def test_server_that_dies_in_the_middle_of_a_maintenance_leaves_nothing_half(faults):
    failed, secs, restored = faults
    assert 0 < failed["evicted"] < NUM_KEYS
    assert failed["has_ended"]
    assert len(failed["errors"]) == 1
    assert secs < 60  # The other server does not wait for its files any more.
    # All is as it was saved, and goes on; keys go when they are due, all of them.
    assert restored["restored"] == failed["saved"]
    assert restored["has_slots"]
    assert restored["left"] == [11, 12]
    assert restored["stats"]["evicted"] == NUM_KEYS + 4
