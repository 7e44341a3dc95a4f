"""Clusters of real processes that train `sync_replicas_program.py`, and their checks.

The applied gradients follow from the replicas' reports: those of each round with its
quorum of committed gradients. A round with fewer is void, or the last.
"""

import json
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import clusters
import numpy as np
import programs
import sync_accounting
import sync_replicas_twin as twin

_PROGRAM = (
    pathlib.Path(__file__).parents[1] / "distributed" / "sync_replicas_program.py"
)
CHIEF = "worker-0"
# Where real replicas are lost: with a permit, and with a gradient that has reached some
# variables and not others. All other points, see `Seams` of the program, are the gate's
# alone, and tests/cc/gate and the simulator lose replicas there.
POINTS = ("computing", "half_pushed")

# Pairs of a worker and the number of its batch, by generation and round.
Rounds = dict[tuple[int, int], list[tuple[int, int]]]


class ReplicaCluster:
    """Parameter servers that serve, and replicas of a program that the test starts.

    The first replica is the chief.
    """

    def __init__(
        self,
        program: pathlib.Path,
        num_workers: int,
        num_ps: int,
        **arguments: Any,
    ):
        """`arguments` are those of the program's `main` for all replicas."""
        self.tasks = clusters.Cluster(
            num_workers,
            num_ps=num_ps,
            chief=False,
            env=programs.environment(),
            serving=("ps",),
        )
        self._command = [sys.executable, str(program)]
        self._arguments = arguments

    def __enter__(self) -> Any:
        self.tasks.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.tasks.__exit__(*exc_info)

    def start(
        self, worker: int, from_fork_server: bool = True, **arguments: Any
    ) -> None:
        """Starts a replica with further arguments of the program's `main`."""
        command = [*self._command, json.dumps(self._arguments | arguments)]
        self.tasks.start(f"worker-{worker}", command, from_fork_server)


class SyncReplicasCluster(ReplicaCluster):
    """Two parameter servers, and replicas that the test starts.

    The gate is on ps-1, beside the variable "table"; "dense" and the global step are on
    ps-0. The quorum is `num_workers` by default. `optimizer` are further arguments of
    the optimizer, which is strict by default, so that it is known who gives which
    gradient.
    """

    def __init__(self, num_workers: int, quorum: int | None = None, **optimizer: Any):
        self._quorum = quorum or num_workers
        super().__init__(
            *(_PROGRAM, num_workers, 2),
            quorum=self._quorum,
            total=num_workers,
            optimizer={"strict": True} | optimizer,
        )

    def committed(self) -> Rounds:
        """The worker and batch of each committed gradient, by generation and round.

        A replica whose session was lost runs its batch again, so the batch may be there
        twice, in two generations.
        """
        rounds: Rounds = {}
        for name in self.tasks.names("worker"):
            for generation, round_number, *pair in self._told(name, "committed"):
                rounds.setdefault((generation, round_number), []).append(tuple(pair))
        return dict(sorted(rounds.items()))

    def applied(self) -> list[list[tuple[int, int]]]:
        """The same for the rounds whose updates are in the weights."""
        committed = self.committed()
        applied: list[list[tuple[int, int]]] = []
        for generation, step in self._told(CHIEF, "opened"):
            # Updates after the checkpoint with which the chief began are lost.
            del applied[step:]
            applied += [
                pairs
                for (its_generation, _), pairs in committed.items()
                if its_generation == generation and len(pairs) == self._quorum
            ]
        return applied

    def num_generations(self) -> int:
        """How often the chief has opened the gate."""
        return len(self._told(CHIEF, "opened"))

    def result(
        self, ending: Iterable[int] = (0,), same_gate: bool = True
    ) -> Mapping[str, Any]:
        """Waits for the end, checks the chief's report, and returns it.

        The weights must be those of the applied batches' averages, up to rounding, and
        the counters must agree with each other and with the replicas' reports.

        `ending`: the replicas that must end in an orderly way; the chief always must.
        """
        for worker in ending:
            name = f"worker-{worker}"
            assert self.tasks.wait(name) == 0, self.tasks.output(name)
        result = programs.result_in(self.tasks.output(CHIEF))
        stats = result["stats"]
        applied = self.applied()
        if stats["pending"] == self._quorum:
            del applied[-1:]  # it was full, but the chief ended before it was applied
        assert stats["in_flight"] == 0
        sync_accounting.assert_identities(stats)
        assert result["global_step"] == len(applied)
        if same_gate:
            assert stats["committed"] == sum(map(len, self.committed().values()))
        if self.num_generations() == 1:
            assert stats["updates"] == len(applied)
            assert stats["applied"] == sum(map(len, applied))
            pairs = [pair for contributions in applied for pair in contributions]
            assert len(set(pairs)) == len(pairs), "a batch was counted twice"
        expected = twin.train(
            [[twin.batch(*pair) for pair in contributions] for contributions in applied]
        )
        for weights, twins in zip(result["weights"], expected, strict=True):
            np.testing.assert_allclose(weights, twins, rtol=1e-12)
        # It takes two minutes with TensorFlow's own class, and 0.1 s here on a quiet
        # machine.
        assert result["close_secs"] < 10
        return result

    def _told(self, name: str, what: str) -> list[Any]:
        told = re.findall(rf"{what} (\[.*\])", self.tasks.output(name))
        return [json.loads(one) for one in told]
