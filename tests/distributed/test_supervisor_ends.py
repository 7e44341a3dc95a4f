"""Replicas of scripts without a hook for all, such as Supervisor's, come to an end.

Leases are ten minutes long here, so that it shows if a gate does not hear of an end.

With TensorFlow 2.21's own class, the replicas that are left wait for ever.
"""

import json
import pathlib
import re
import time

import pytest
from sync_replicas_cluster import ReplicaCluster

PROGRAM = pathlib.Path(__file__).parent / "supervisor_program.py"
STYLES = ["managed", "with", "unstopped", "oldest", "chief_only_hooks"]
# How long it may take until others know of an end. It takes 0.1 s on a quiet machine.
SECS = 20.0
TOO_MANY = 10**6


class Scripts(ReplicaCluster):
    """A parameter server, and two replicas that the test starts."""

    def __init__(self):
        # It is strict, since otherwise the first replica would make all steps alone.
        super().__init__(PROGRAM, 2, 1, strict=True)

    def start(self, worker, style, batches, **arguments):
        super().start(worker, style=style, batches=batches, **arguments)

    def output(self, worker):
        return self.tasks.output(f"worker-{worker}")

    def assert_ends(self, worker, status=0, has_server=True):
        """Waits for its end; returns the time of the end."""
        assert self.tasks.wait(f"worker-{worker}") == status, self.output(worker)
        # No time was spent waiting for a server that is gone.
        assert not has_server or "still runs" not in self.output(worker)
        return time.monotonic()

    def updates(self):
        """How many updates the chief has seen, by its weight and by the global step."""
        told = re.findall(r"weight (\[.*\])", self.output(0))
        weight, step = json.loads(told[-1])
        assert weight == -0.5 * step
        return step


@pytest.mark.ci
@pytest.mark.parametrize(
    ("style", "fails", "from_fork_server"),
    [
        *((style, False, True) for style in STYLES),
        ("managed", True, True),
        ("unstopped", False, False),  # The end is an interpreter's own.
    ],
)
def test_replica_that_ends_is_not_waited_for(style, fails, from_fork_server):
    with Scripts() as scripts:
        scripts.start(0, style, 9, from_fork_server=from_fork_server)
        scripts.start(1, style, 3, fails=fails, from_fork_server=from_fork_server)
        ended = scripts.assert_ends(1, status=int(fails))
        assert scripts.assert_ends(0) - ended < SECS
        assert "end of input" not in scripts.output(0)
    # Two updates have gradients of both, and two of the chief alone.
    assert scripts.updates() in (5, 6)


@pytest.mark.parametrize("style", STYLES)
def test_training_ends_for_all_when_the_chief_ends(style):
    with Scripts() as scripts:
        scripts.start(0, style, 3)
        scripts.start(1, style, TOO_MANY)
        ended = scripts.assert_ends(0)
        assert scripts.assert_ends(1) - ended < SECS
        assert "end of input" in scripts.output(1)


@pytest.mark.ci
@pytest.mark.parametrize("style", ["managed", "unstopped", "chief_only_hooks"])
def test_chief_that_fails_may_come_back_and_its_replica_waits_for_it(style):
    with Scripts() as scripts:
        scripts.start(0, style, 3, fails=True)
        scripts.start(1, style, TOO_MANY)
        scripts.assert_ends(0, status=1)
        # The next one finds the gate still open.
        scripts.start(0, style, 3)
        scripts.assert_ends(0)
        scripts.assert_ends(1)
        told = re.findall(r"stats (.*)", scripts.output(0))
    first, second = (json.loads(one)["generation"] for one in told)
    assert second == first + 1


@pytest.mark.ci
def test_end_does_not_wait_for_a_server_that_is_gone():
    with Scripts() as scripts:
        scripts.start(0, "unstopped", 3, stop_at=[2])
        scripts.start(1, "unstopped", TOO_MANY)
        scripts.tasks.wait_until_suspended("worker-0")
        scripts.tasks.kill("ps-0")
        killed = time.monotonic()
        scripts.tasks.resume("worker-0")
        # Both fail by their loss, and not by their reports at the end.
        for worker in range(2):
            assert scripts.assert_ends(worker, 1, has_server=False) - killed < SECS
            assert "Unavailable" in scripts.output(worker)
