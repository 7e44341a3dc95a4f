"""Clusters of real processes that train `sync_replicas_program.py`, and their proof.

What was applied follows from what the replicas recorded: the gradients of a round that
has its quorum of committed ones. A round that has fewer is void, or the last.
"""

import json
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import clusters
import fork_server
import numpy as np
import programs
import sync_replicas_twin as twin

_PROGRAM = (
    pathlib.Path(__file__).parents[1] / "distributed" / "sync_replicas_program.py"
)
CHIEF = "worker-0"
# Where a replica can stop itself (see `Seams` of the program), and between which of
# them its gradient is admitted: it may have reached some variables and not others.
POINTS = ("computing", "admitted", "half_pushed", "pushed", "committed")
ADMITTED = POINTS[1:4]


class SyncReplicasCluster:
    """Two parameter servers that serve, and replicas that the test starts.

    The gate is on ps-0, where the variable "table" is; "dense" is on ps-1.
    """

    def __init__(
        self,
        num_workers: int,
        forks: fork_server.ForkServer,
        quorum: int | None = None,
        total: int | None = None,
        **optimizer: Any,
    ):
        """Describes it; the parameter servers start when the context is entered.

        Args:
            num_workers: how many replicas there may be, the first being the chief.
            forks: where its processes come from.
            quorum: `replicas_to_aggregate`, as many as replicas by default.
            total: `total_num_replicas`, as many as replicas by default.
            **optimizer: further arguments of the optimizer.
        """
        self.tasks = clusters.Cluster(
            num_workers,
            num_ps=2,
            chief=False,
            env=programs.environment(),
            serving=("ps",),
            forks=forks,
        )
        self._quorum = quorum or num_workers
        self._arguments = {
            "quorum": self._quorum,
            "total": total or num_workers,
            "optimizer": optimizer,
        }

    def __enter__(self) -> "SyncReplicasCluster":
        self.tasks.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.tasks.__exit__(*exc_info)

    def start(self, worker: int, **arguments: Any) -> None:
        """Starts a replica; `arguments` are those of the program's `main`."""
        command = [sys.executable, str(_PROGRAM)]
        command.append(json.dumps(self._arguments | arguments))
        self.tasks.start(f"worker-{worker}", command)

    def committed(self) -> dict[int, list[tuple[int, int]]]:
        """Returns worker and batch of each committed gradient, by round, in order."""
        rounds: dict[int, list[tuple[int, int]]] = {}
        for name in self.tasks.names("worker"):
            for found in re.findall(r"committed (\[.*\])", self.tasks.output(name)):
                round_number, worker, batch = json.loads(found)
                rounds.setdefault(round_number, []).append((worker, batch))
        return dict(sorted(rounds.items()))

    def applied(self) -> list[list[tuple[int, int]]]:
        """Returns the same of the rounds that were applied."""
        return [
            contributions
            for contributions in self.committed().values()
            if len(contributions) == self._quorum
        ]

    def result(self, ending: Iterable[int] = (0,)) -> Mapping[str, Any]:
        """Waits for the end, and checks that all is in order.

        That is: weights of the applied batches' averages, to rounding, and
        counters that agree with each other and with what the replicas recorded.

        Args:
            ending: the replicas that must come to an orderly end; the chief has to.

        Returns:
            What the chief reported.
        """
        for worker in ending:
            name = f"worker-{worker}"
            assert self.tasks.wait(name) == 0, self.tasks.output(name)
        result = programs.result_in(self.tasks.output(CHIEF))
        stats = result["stats"]
        committed = [pair for pairs in self.committed().values() for pair in pairs]
        applied = self.applied()
        assert stats["in_flight"] == 0
        assert stats["admitted"] == stats["committed"] + stats["aborted"]
        assert stats["committed"] == len(committed)
        assert stats["committed"] == (
            stats["applied"] + stats["voided"] + stats["pending"]
        )
        assert stats["applied"] == sum(map(len, applied))
        assert stats["rounds"] == stats["updates"] + stats["voids"]
        assert stats["updates"] == result["global_step"] == len(applied)
        assert len(set(committed)) == len(committed), "a batch was counted twice"
        expected = twin.train(
            [[twin.batch(*pair) for pair in contributions] for contributions in applied]
        )
        for weights, twins in zip(result["weights"], expected, strict=True):
            np.testing.assert_allclose(weights, twins, rtol=1e-12)
        # Two minutes with TensorFlow's own class. It takes 0.1 s on a quiet machine.
        assert result["close_secs"] < 10
        return result
