"""Clusters of real processes that train by SyncReplicas for Keras, and their proof."""

import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import clusters
import keras_sync_replicas
import network_namespaces
import programs
import worker_seams

_POLL_SECS = 0.02

_PROGRAM = (
    pathlib.Path(__file__).parents[1] / "keras" / "sync_replicas_faults_program.py"
)


class KerasSyncCluster:
    """Two parameter servers, workers, and a coordinator that the test starts."""

    def __init__(
        self,
        folder: pathlib.Path,
        num_workers: int,
        namespace: network_namespaces.Namespace | None = None,
        **arguments: Any,
    ):
        """Describes it; the servers start when the context is entered.

        Args:
            folder: an empty folder for files that tell tasks what to do.
            num_workers: how many workers it has.
            namespace: in which the last worker is; on this machine's network by
                default.
            **arguments: those of the program's `main`; there are as many steps as a
                test wants, and a quorum of all workers, if they are not said.
        """
        env, namespaces = programs.environment(), {}
        if namespace is not None:
            namespaces[f"worker-{num_workers - 1}"] = namespace
            # gRPC would ask a proxy for these addresses.
            hosts = f"{namespace.inside},{namespace.outside}"
            env |= {"no_proxy": hosts, "NO_PROXY": hosts}
        self.tasks = clusters.Cluster(
            num_workers, num_ps=2, env=env, namespaces=namespaces
        )
        self.folder = folder
        self._arguments = {
            "folder": str(folder),
            "loop": "fit",
            "quorum": num_workers,
            "total": num_workers,
            "steps": 4 * num_workers,
            "epochs": 10_000,
            **arguments,
        }

    def __enter__(self) -> "KerasSyncCluster":
        self.tasks.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.tasks.__exit__(*exc_info)

    def start(self) -> None:
        """Starts the coordinator."""
        self._epochs_before = self._num_epochs()
        command = [sys.executable, str(_PROGRAM), json.dumps(self._arguments)]
        self.tasks.start("chief", command)

    def _num_epochs(self) -> int:
        lines = self.tasks.output("chief").splitlines()
        return sum(line.startswith("epoch ") for line in lines)

    def wait_until_at(self, point: str, worker: int) -> None:
        """Makes a worker stop at a point, and waits until it is there."""
        name, text = f"worker-{worker}", f"at {point}"
        earlier = self.tasks.output(name).count(text)
        worker_seams.stop_at(self.folder, point, worker)
        self.tasks.wait_for_output(name, text, occurrence=earlier + 1)

    def kill_at(self, point: str, worker: int) -> None:
        """Kills a worker at a point."""
        self.wait_until_at(point, worker)
        self.tasks.kill(f"worker-{worker}")
        worker_seams.go_on(self.folder, point, worker)

    def updates(self) -> int:
        """How many updates the coordinator has told of so far."""
        return self.tasks.output("chief").count("update ")

    def wait_for_updates(self, more: int = 3) -> None:
        """Waits for so many updates more."""
        self.tasks.wait_for_output("chief", "update ", self.updates() + more)

    def stats(self) -> dict[str, Any]:
        """The gate's counters as they are now."""
        told = self.folder / "told"
        (self.folder / "tell").touch()
        deadline = time.monotonic() + clusters.DEADLINE_SECS
        while not told.exists():
            assert time.monotonic() < deadline, self.tasks.output("chief")
            time.sleep(_POLL_SECS)
        stats = json.loads(told.read_text())
        told.unlink()
        return stats

    def wait_for_stats(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits until something holds of the gate's counters; returns those."""
        deadline = time.monotonic() + clusters.DEADLINE_SECS
        while not holds(stats := self.stats()):
            assert time.monotonic() < deadline, json.dumps(stats)
            time.sleep(_POLL_SECS)
        return stats

    def end(self) -> None:
        """Lets the training end with the epoch."""
        (self.folder / "end").touch()

    def result(self, exact: bool = True, first_step: int | None = 0) -> dict[str, Any]:
        """Waits for the end, and checks that all is in order.

        That is: the counters agree with each other, `iterations` are updates, and each
        update was the mean of one round's gradients, on the weights before it; and no
        step that was to be made was lost with a worker.

        Args:
            exact: whether nothing but workers failed, so that weights can be replayed.
            first_step: as of `keras_sync_replicas.assert_exact`.

        Returns:
            What the coordinator reported.
        """
        assert self.tasks.wait("chief") == 0, self.tasks.output("chief")
        result = json.loads((self.folder / "result").read_text())
        if exact:
            keras_sync_replicas.assert_exact(result, first_step=first_step)
        if result["errors"] == [None]:
            stats = result["stats"]
            steps = self._arguments["steps"] * (
                self._num_epochs() - self._epochs_before
            )
            assert steps <= sum(
                stats[fate] for fate in ("admitted", "late", "stale", "rejected")
            )
        return result
