"""A cluster of real processes that trains what a benchmark tells it to."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing import connection
from typing import Any

import clusters

_PROGRAM = pathlib.Path(__file__).with_name("replica.py")
_NUM_PS = 2
_DEADLINE_SECS = 120.0


class Replicas:
    """The workers of a cluster; each runs `replica.Replica`."""

    def __init__(self, workers: list[Any]):
        """Takes the connections, by the workers' indices."""
        self._workers = workers

    def chief(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the chief and returns its result."""
        self._workers[0].send((method, *arguments))
        return self._answer(self._workers[0])

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
        self._answer(self._workers[0])
        seconds = time.perf_counter() - begin
        for worker in self._workers[1:]:
            self._answer(worker)
        return seconds

    def open(self, name: str) -> None:
        """Opens a contender's sessions, the chief's first."""
        self.chief("open", name)
        for worker in self._workers[1:]:
            worker.send(("open", name))
        for worker in self._workers[1:]:
            self._answer(worker)

    def _answer(self, worker: Any) -> Any:
        if not worker.poll(_DEADLINE_SECS):
            raise TimeoutError(f"a worker has not answered for {_DEADLINE_SECS:g} s")
        return worker.recv()


@contextlib.contextmanager
def start(
    num_workers: int, contenders: Mapping[str, Any], model: Mapping[str, Any]
) -> Iterator[Replicas]:
    """Starts the processes; none is left at the end.

    Args:
        num_workers: beside the two parameter servers.
        contenders: arguments of `replica.Graph`, by their names.
        model: the same for all.
    """
    key = secrets.token_hex()
    cluster = clusters.Cluster(
        num_workers, _NUM_PS, chief=False, env={"TF_SYNCREP_BENCHMARK_KEY": key}
    )
    with connection.Listener(("127.0.0.1", 0), authkey=key.encode()) as listener:
        try:
            for i in range(_NUM_PS):
                cluster.start(f"ps-{i}")
            cluster.wait_until_ready()
            address = [str(part) for part in listener.address]
            for i in range(num_workers):
                command = [sys.executable, str(_PROGRAM), *address]
                cluster.start(f"worker-{i}", command)
            connections = [listener.accept() for _ in range(num_workers)]
            by_index = {worker.recv(): worker for worker in connections}
            workers = [by_index[i] for i in range(num_workers)]
            for worker in workers:
                worker.send((dict(contenders), dict(model)))
            try:
                yield Replicas(workers)
            except Exception:
                for i in range(num_workers):
                    print(cluster.output(f"worker-{i}")[-2000:], file=sys.stderr)
                raise
        finally:
            cluster.__exit__()
