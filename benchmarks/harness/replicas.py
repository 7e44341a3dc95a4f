"""Clusters of real processes that train what a benchmark tells them to."""

from __future__ import annotations

import contextlib
import json
import pathlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import clusters
import commands
import network_namespaces
import programs

from . import processor_time

# For tasks whose `calls_made` are to be counted: logs of gRPC, and of grpc+tfs.
LOG_CALLS = {
    "GRPC_VERBOSITY": "DEBUG",
    "GRPC_TRACE": "api",
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TF_SYNCREP_LOG_CALLS": "1",
}
# What each call begins or ends with in these, at the side of the client.
_CALLS = ("RECV_STATUS_ON_CLIENT", "grpc+tfs asks")

_FOLDER = pathlib.Path(__file__).parent
_DEADLINE_SECS = 120.0


class Replicas:
    """The processes of a cluster that are told what to do; see `start`."""

    def __init__(
        self,
        workers: Mapping[str, Any],
        pids: Mapping[str, int],
        output: Callable[[str], str],
    ):
        """Takes connections, the chief's first, pids and outputs by tasks' names."""
        self._pids = dict(pids)
        self._output = output
        self._names = list(workers)
        self._workers = list(workers.values())

    def chief(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the chief and returns its result."""
        self._workers[0].send((method, *arguments))
        return self._answer(0, method, arguments)

    def all(self, method: str, *arguments: Any) -> float:
        """Calls a method of all at once; returns the seconds until all were done."""
        begin = time.perf_counter()
        self.each(method, [arguments] * len(self._workers))
        return time.perf_counter() - begin

    def each(self, method: str, arguments: list[tuple[Any, ...]]) -> float:
        """Calls it with arguments for each; returns the seconds that the chief took."""
        begin = time.perf_counter()
        for worker, own in zip(self._workers, arguments, strict=True):
            worker.send((method, *own))
        self._answer(0, method, arguments[0])
        seconds = time.perf_counter() - begin
        for index in range(1, len(self._workers)):
            self._answer(index, method, arguments[index])
        return seconds

    def open(self, name: str) -> None:
        """Opens a contender's sessions, the chief's first."""
        self.chief("open", name)
        for worker in self._workers[1:]:
            worker.send(("open", name))
        for index in range(1, len(self._workers)):
            self._answer(index, "open", (name,))

    def cpu_secs(self) -> list[float]:
        """Returns the CPU time that each process has used."""
        return [processor_time.seconds(pid) for pid in self._pids.values()]

    @property
    def pids(self) -> list[int]:
        """The process ids of all tasks."""
        return list(self._pids.values())

    def calls_made(self) -> int:
        """How many calls tasks have made, if they were started with `LOG_CALLS`."""
        outputs = [self._output(task) for task in self._pids]
        return sum(output.count(call) for output in outputs for call in _CALLS)

    def _answer(self, index: int, method: str, arguments: tuple[Any, ...]) -> Any:
        call = f"{method}({', '.join(map(repr, arguments))})"
        name = self._names[index]
        if not self._workers[index].poll(_DEADLINE_SECS):
            raise TimeoutError(
                f"{name} has not answered {call} for {_DEADLINE_SECS:g} s"
            )
        try:
            result, error = self._workers[index].recv()
        except (EOFError, ConnectionError) as lost:
            raise RuntimeError(f"{name} has ended in {call}") from lost
        if error:
            raise RuntimeError(f"{name} failed in {call}:\n{error}")
        return result


@contextlib.contextmanager
def start(
    num_workers: int,
    contenders: Mapping[str, Any],
    model: Mapping[str, Any],
    num_ps: int = 2,
    program: str = "replica.py",
    coordinated: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[Replicas]:
    """Starts the processes; none is left at the end.

    `contenders`: the contenders that the program can open, by their names.
    `coordinated`: whether only a chief is told what to do, and the workers are servers.
    If not, each worker is told, and worker 0 is the chief.
    """
    key = secrets.token_hex()
    cluster = clusters.Cluster(
        num_workers,
        num_ps,
        chief=coordinated,
        env={**(env or {}), "TF_SYNCREP_BENCHMARK_KEY": key},
        serving=("worker", "ps") if coordinated else ("ps",),
    )
    names = cluster.names("chief" if coordinated else "worker")
    tasks = {*names, *cluster.names("worker"), *cluster.names("ps")}
    with cluster, connection.Listener(("127.0.0.1", 0), authkey=key.encode()) as own:
        address = [str(part) for part in own.address]
        for name in names:
            cluster.start(name, [sys.executable, str(_FOLDER / program), *address])
        try:
            workers = _connections(own, names)
            pids = {name: cluster.pid(name) for name in tasks}
            replicas = Replicas(workers, pids, cluster.output)
            replicas.all("start", dict(contenders), dict(model))
            yield replicas
        except Exception:
            for name in names:
                print(name, cluster.output(name)[-2000:], file=sys.stderr)
            raise


@contextlib.contextmanager
def start_in_namespaces(
    namespaces: Mapping[str, network_namespaces.Namespace],
    port: int,
    options: Sequence[str],
    contenders: Mapping[str, Any],
    model: Mapping[str, Any],
) -> Iterator[Replicas]:
    """Starts `embedding_trainer.py` by `tf-syncrep task`, each task in a network."""
    cluster: dict[str, list[str]] = {}
    for name, namespace in namespaces.items():
        job = name.split("-")[0]
        cluster.setdefault(job, []).append(f"{namespace.inside}:{port}")
    outside = namespaces["chief"].outside
    key = secrets.token_hex()
    with (
        contextlib.ExitStack() as stack,
        connection.Listener((outside, 0), authkey=key.encode()) as own,
    ):
        tasks = {}
        for name, namespace in namespaces.items():
            job, _, index = name.partition("-")
            task = {"type": job, "index": int(index or 0)}
            tasks[name] = stack.enter_context(
                commands.Command(
                    *("task", *options, _FOLDER / "embedding_trainer.py"),
                    *own.address,
                    program=[*namespace.within, commands.CONSOLE_SCRIPT],
                    env=programs.environment()
                    | {
                        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
                        "TF_SYNCREP_BENCHMARK_KEY": key,
                    },
                )
            )
        try:
            workers = _connections(own, ["chief"])
            pids = {name: task.process.pid for name, task in tasks.items()}
            replicas = Replicas(workers, pids, lambda name: tasks[name].output)
            replicas.all("start", dict(contenders), dict(model))
            yield replicas
        except Exception:
            for name, task in tasks.items():
                print(name, task.output[-2000:], file=sys.stderr)
            raise


def _connections(own: connection.Listener, names: Sequence[str]) -> dict[str, Any]:
    """Waits until those that are told what to do have connected."""
    # A task that dies before it connects must not be waited for without end.
    own._listener._socket.settimeout(_DEADLINE_SECS)
    connections = [own.accept() for _ in names]
    by_index = {worker.recv(): worker for worker in connections}
    return {name: by_index[index] for index, name in enumerate(names)}


def take_turns(
    runs: Mapping[str, Callable[[int], float]],
    probed: Mapping[str, float],
    rounds: int,
    turn_secs: float,
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Lets contenders run in turns, another one first in each round.

    `turn_secs`: how long a turn is; at least one step is made.
    """
    steps = {name: max(1, round(turn_secs / probed[name])) for name in runs}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            samples[name].append(runs[name](steps[name]) / steps[name])
    return samples, {name: rounds * steps[name] for name in names}
