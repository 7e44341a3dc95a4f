"""Random schedules of faults for a cluster that trains, the same for the same seed."""

import dataclasses
import random
import time
from collections.abc import Sequence

import clusters

_KINDS = ("kill", "kill", "suspend", "suspend_server")


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that happens to a task.

    Attributes:
        after_secs: how long after the fault before it.
        kind: "kill" (SIGKILL) or "suspend" (SIGSTOP).
        task: its name.
        for_secs: how long until it is started again (SIGCONT, or a new process).
    """

    after_secs: float
    kind: str
    task: str
    for_secs: float


def schedule(
    seed: int, workers: Sequence[str], servers: Sequence[str], lease_secs: float
) -> list[Fault]:
    """Draws a schedule.

    Workers are killed and suspended, for less or for longer than their lease, perhaps
    several at once; servers, which training cannot go on without, are suspended only.

    Args:
        seed: which schedule.
        workers: names of tasks.
        servers: names of the tasks that are not to be killed.
        lease_secs: how long a worker may be silent.

    Returns:
        The faults, in order.
    """
    draw = random.Random(seed)
    faults = []
    for _ in range(draw.randint(3, 6)):
        kind = draw.choice(_KINDS)
        task = draw.choice(servers if kind == "suspend_server" else workers)
        for_secs = draw.choice([0.0, 0.2, 0.5, 1.5]) * lease_secs * draw.random()
        after_secs = draw.choice([0.0, 0.1, 1.0]) * draw.random()
        faults.append(Fault(after_secs, kind.split("_")[0], task, for_secs))
    return faults


def run(faults: Sequence[Fault], tasks: clusters.Cluster) -> None:
    """Lets a schedule happen, and returns when all tasks run again.

    A fault of a task that is down or suspended already comes when it is up again.

    Args:
        faults: the schedule.
        tasks: the cluster.
    """
    down: dict[str, tuple[float, str]] = {}  # When to start what, and how.

    def bring_up(until: float, names: Sequence[str]) -> None:
        while True:
            due = [(down[name][0], name) for name in names if name in down]
            if not due or min(due)[0] > until:
                return
            at, name = min(due)
            time.sleep(max(0.0, at - time.monotonic()))
            if down.pop(name)[1] == "kill":
                tasks.start(name)
            else:
                tasks.resume(name)

    for fault in faults:
        begin = time.monotonic() + fault.after_secs
        bring_up(begin, list(down))
        bring_up(float("inf"), [fault.task])
        time.sleep(max(0.0, begin - time.monotonic()))
        if fault.kind == "kill":
            tasks.kill(fault.task)
        else:
            tasks.suspend(fault.task)
        down[fault.task] = (time.monotonic() + fault.for_secs, fault.kind)
    bring_up(float("inf"), list(down))
