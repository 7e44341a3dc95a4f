"""Synchronous training by a whole cluster: 4 workers and 2 parameter servers.

All tasks are processes on this machine. Synchronous contenders average as many
gradients as there are workers. TensorFlow's class has Adam inside and `num_tokens=0`,
since otherwise it would hang. One of its workers may take a token that was for another,
so that it would also hang if each worker made a certain number of steps; therefore
synchronous turns end at a global step. Training by the same workers without
synchronisation shows how many gradients the machine can compute, and the CPU seconds
that all processes use in a second show how busy it is. In another contender, each
worker waits after each step until all have made it, by pipes and not by TensorFlow. It
shows how much of the rest is that workers wait for one another, by whatever means. A
second cluster trains by gRPC alone. A sample is the time in which the cluster computes
four gradients, measured over a turn of about a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import barrier, replicas
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    at_most,
    by_grpc,
    share_of_grpc,
    times_faster,
)

from tf_syncrep.python.distribute import wire

WORKERS = 4
OURS = "tf_syncrep's SyncReplicas, AdamAsync"
STOCK = "TensorFlow's SyncReplicas, Adam"
ASYNCHRONOUS = "asynchronous, AdamAsync"
IN_STEP = "asynchronous, AdamAsync, in step"
_NAMES = {
    "ours": OURS,
    "ours_by_grpc": by_grpc(OURS),
    "stock": STOCK,
    "asynchronous": ASYNCHRONOUS,
    "asynchronous_by_grpc": by_grpc(ASYNCHRONOUS),
    "in_step": IN_STEP,
}
_SYNC = {"quorum": WORKERS, "total": WORKERS}
CONTENDERS: dict[str, dict[str, Any]] = {
    "ours": {"sync": "ours", "inner": "AdamAsync", **_SYNC},
    "stock": {"sync": "stock", "inner": "Adam", **_SYNC},
    "asynchronous": {"sync": "", "inner": "AdamAsync"},
    # It gets the "barrier" of the measurement.
    "in_step": {"sync": "", "inner": "AdamAsync"},
}
_BY_GRPC = {f"{x}_by_grpc": CONTENDERS[x] for x in ("ours", "asynchronous")}
_MOST_OF_GRPC = 0.3

DENSE = "six layers of 64 x 64"
EMBEDDING = "embedding of 1M x 64, 4096 ids"
SMALL_EMBEDDING = "embedding of 1000 x 64, 32 ids"
_MODELS = {
    DENSE: {"rows": 0, "ids": 0},
    EMBEDDING: {"rows": 1_000_000, "ids": 4096},
    SMALL_EMBEDDING: {"rows": 1000, "ids": 32},
}
_REHEARSED_STEPS = 5
_PROBED_STEPS = 5
_TURN_SECS = 1.0


class Turns:
    """A contender's turns on a cluster."""

    def __init__(self, cluster: replicas.Replicas, name: str):
        """Opens its sessions and checks what it computes."""
        self._cluster = cluster
        self._name = name
        self._is_sync = bool((CONTENDERS | _BY_GRPC)[name]["sync"])
        self._step = 0
        self._steps = 0
        self._cpu_secs = 0.0
        cluster.open(name)
        self._check()

    @property
    def cpu_secs(self) -> float:
        """The CPU time of all processes in the time of a sample."""
        return self._cpu_secs / self._steps

    def run(self, steps: int) -> float:
        """Lets the cluster compute `WORKERS * steps` gradients; returns seconds."""
        before = sum(self._cluster.cpu_secs())
        seconds = self._train("run", steps, 0.0)
        self._cpu_secs += sum(self._cluster.cpu_secs()) - before
        self._steps += steps
        return seconds

    def read(self) -> tuple[int, list[np.ndarray]]:
        """Checks and returns the number of updates, and returns the weights."""
        step, weights = self._cluster.chief("read", self._name)
        # The last steps of the others may make one more update.
        assert 0 <= step - self._step <= self._is_sync, (
            f"{self._name}: {step} updates, not {self._step}"
        )
        return step, weights

    def _train(self, method: str, steps: int, *more: float) -> float:
        self._step += steps if self._is_sync else WORKERS * steps
        ends = (0, self._step) if self._is_sync else (steps, 0)
        return self._cluster.all(method, self._name, *ends, *more)

    def _check(self) -> None:
        """Compares the weights, after equal batches, with those of one process."""
        self._train("rehearse", _REHEARSED_STEPS)
        step, weights = self.read()
        if self._is_sync:
            expected = self._cluster.chief("train_alone", self._name, step)
            for actual, wanted in zip(weights, expected, strict=True):
                np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Runs all contenders in turns on one cluster."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(barrier.serve(WORKERS))
        in_step = {**CONTENDERS["in_step"], "barrier": folder}
        turns = {}
        for layer, contenders in (
            (wire.WIRE, {**CONTENDERS, "in_step": in_step}),
            (wire.GRPC, _BY_GRPC),
        ):
            cluster = stack.enter_context(
                replicas.start(
                    WORKERS,
                    contenders,
                    _MODELS[point["model"]],
                    env={wire.VARIABLE: layer},
                )
            )
            turns |= {name: Turns(cluster, name) for name in contenders}
        samples, _ = replicas.take_turns(
            {name: turn.run for name, turn in turns.items()},
            {
                name: turn.run(_PROBED_STEPS) / _PROBED_STEPS
                for name, turn in turns.items()
            },
            max(2, rounds // 2),
            _TURN_SECS,
        )
        for turn in turns.values():
            turn.read()
    return [
        Measurement(
            _NAMES[name],
            point,
            "s",
            samples[name],
            counts={
                "gradients": WORKERS,
                "updates": 1 if (CONTENDERS | _BY_GRPC)[name]["sync"] else WORKERS,
            },
            cpu=turn.cpu_secs,
        )
        for name, turn in turns.items()
    ]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    dense = [m for m in measurements if m.point["model"] == DENSE]
    embedding = [m for m in measurements if m.point["model"] != DENSE]
    return [
        *times_faster(dense, OURS, STOCK, 1.3),
        *times_faster(embedding, OURS, STOCK, 10),
        *at_most(measurements, OURS, ASYNCHRONOUS, 1 / 0.9),
        *share_of_grpc(dense, OURS, _MOST_OF_GRPC),
        *share_of_grpc(dense, ASYNCHRONOUS, _MOST_OF_GRPC),
    ]


BENCHMARK = Benchmark(
    title="Synchronous training by 4 workers and 2 parameter servers",
    axes={"model": Axis([DENSE, EMBEDDING], quick=[SMALL_EMBEDDING])},
    measure=measure,
    judge=judge,
)
