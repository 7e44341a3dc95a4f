"""Nothing of a synchronous training remains on parameter servers that outlive it."""

import json
import pathlib
import re
import sys
import time

import clusters
import process_threads
import pytest

PROGRAM = pathlib.Path(__file__).with_name("lifetimes_program.py")
POLL_SECS = 0.05
LEASE_THREADS = "tfs_leases"
# How many trainings a coordinator makes before its server is measured: by then the
# server has everything that is made only once.
FIRST = 3
# TensorFlow's own threads, for each coordinator of which a server has heard: those of
# its client for the other tasks never end.
CLIENT_THREADS = 4
# Threads of pools that are started when they are first needed.
POOL_THREADS = 2
# TensorFlow's own memory, for each training: servers keep a part of each function. One
# accumulator of these trainings has 8 MB.
FUNCTIONS_MB = 6

pytestmark = [pytest.mark.one_version, pytest.mark.slow, pytest.mark.timeout(900)]


class Server:
    """What a server holds, according to the kernel."""

    def __init__(self, pid):
        self._pid = pid

    def lease_threads(self):
        """How many threads of gates and queues there are."""
        return len(process_threads.threads_named(LEASE_THREADS, self._pid))

    def other_threads(self):
        threads = process_threads.threads(self._pid)
        return sum(status["Name"] != LEASE_THREADS for _, status in threads)

    def megabytes(self):
        return self._status("VmRSS") / 1024

    def wait_until_no_lease_threads(self):
        deadline = time.monotonic() + clusters.DEADLINE_SECS
        while self.lease_threads():
            assert time.monotonic() < deadline, self.lease_threads()
            time.sleep(POLL_SECS)

    def _status(self, name):
        status = pathlib.Path(f"/proc/{self._pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", status)[1])


class Coordinators:
    """Coordinators of one cluster, one after the other."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.number = 0

    def start(self, trainings, **options):
        self.number += 1
        arguments = {"trainings": trainings, "keep_alive_secs": 600, **options}
        command = [sys.executable, str(PROGRAM), json.dumps(arguments)]
        self._cluster.start("chief", command)

    def start_and_kill(self):
        epochs = self._cluster.output("chief").count("epoch")
        self.start(trainings=0, is_killed=True, keep_alive_secs=2)
        self._cluster.wait_for_output("chief", "epoch", epochs + 2)
        self._cluster.kill("chief")


def test_fifty_trainings_leave_threads_and_memory_of_a_server_as_they_were():
    with clusters.Cluster(num_workers=2, num_ps=1) as cluster:
        server = Server(cluster.pid("ps-0"))
        coordinators = Coordinators(cluster)
        # Each optimizer makes two trainings.
        coordinators.start(trainings=24, is_killed=False)
        cluster.wait_for_output("chief", "trained", FIRST)
        threads, megabytes = server.other_threads(), server.megabytes()
        for number in range(FIRST + 1, 25):
            cluster.wait_for_output("chief", "trained", number)
        assert cluster.wait("chief") == 0, cluster.output("chief")
        # It has not told the server that it ends, and is not taken for dead yet.
        server.wait_until_no_lease_threads()
        assert server.other_threads() <= threads + POOL_THREADS
        assert server.megabytes() <= megabytes + 24 * FUNCTIONS_MB
        for _ in range(3):
            coordinators.start_and_kill()
            server.wait_until_no_lease_threads()
        of_tensorflow = POOL_THREADS + CLIENT_THREADS * coordinators.number
        assert server.other_threads() <= threads + of_tensorflow
        assert server.megabytes() <= megabytes + 27 * FUNCTIONS_MB
