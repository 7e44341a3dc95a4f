"""Synchronous training by a whole cluster: 4 workers and 2 parameter servers.

All are processes on this machine. Synchronous contenders average one gradient of each
worker. TensorFlow's class runs with `num_tokens=0`, or it would hang, and with Adam
inside. Training by the same workers without synchronisation says how many gradients
the machine can compute. A sample is the time in which the cluster computes four
gradients, taken over a turn of about a second.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import replicas
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    at_most,
    times_faster,
)

WORKERS = 4
OURS = "tf_syncrep's SyncReplicas, AdamAsync"
STOCK = "TensorFlow's SyncReplicas, Adam"
ASYNCHRONOUS = "asynchronous, AdamAsync"
_NAMES = {"ours": OURS, "stock": STOCK, "asynchronous": ASYNCHRONOUS}
_SYNC = {"quorum": WORKERS, "total": WORKERS}
CONTENDERS: dict[str, dict[str, Any]] = {
    "ours": {"sync": "ours", "inner": "AdamAsync", **_SYNC},
    "stock": {"sync": "stock", "inner": "Adam", **_SYNC},
    "asynchronous": {"sync": "", "inner": "AdamAsync"},
}

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


def check(cluster: replicas.Replicas, name: str) -> None:
    """Holds the weights, all workers having had one batch, to those of one process."""
    cluster.all("rehearse", name, _REHEARSED_STEPS)
    step, weights = cluster.chief("read", name)
    if CONTENDERS[name]["sync"]:
        assert step == _REHEARSED_STEPS, f"{name}: {step} updates"
        expected = cluster.chief("train_alone", name, _REHEARSED_STEPS)
        for actual, wanted in zip(weights, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)
    else:
        assert step == WORKERS * _REHEARSED_STEPS, f"{name}: {step} updates"


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Runs all contenders in turns on one cluster."""
    with replicas.start(WORKERS, CONTENDERS, _MODELS[point["model"]]) as cluster:

        def run(name: str, steps: int) -> float:
            return cluster.all("run", name, steps, 0, 0.0)

        for name in CONTENDERS:
            cluster.open(name)
            check(cluster, name)
        samples, made = replicas.take_turns(
            {name: functools.partial(run, name) for name in CONTENDERS},
            {name: run(name, _PROBED_STEPS) / _PROBED_STEPS for name in CONTENDERS},
            max(2, rounds // 2),
            _TURN_SECS,
        )
        for name, contender in CONTENDERS.items():
            step, _ = cluster.chief("read", name)
            per_step = 1 if contender["sync"] else WORKERS
            expected = per_step * (_REHEARSED_STEPS + _PROBED_STEPS + made[name])
            assert step == expected, f"{name}: {step} updates, not {expected}"
    return [
        Measurement(
            _NAMES[name],
            point,
            "s",
            samples[name],
            counts={
                "gradients": WORKERS,
                "updates": 1 if CONTENDERS[name]["sync"] else WORKERS,
            },
        )
        for name in CONTENDERS
    ]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Holds the figures to the targets."""
    dense = [m for m in measurements if m.point["model"] == DENSE]
    embedding = [m for m in measurements if m.point["model"] != DENSE]
    return [
        *times_faster(dense, OURS, STOCK, 1.3),
        *times_faster(embedding, OURS, STOCK, 10),
        *at_most(measurements, OURS, ASYNCHRONOUS, 1 / 0.9),
    ]


BENCHMARK = Benchmark(
    title="Synchronous training by 4 workers and 2 parameter servers",
    axes={"model": Axis([DENSE, EMBEDDING], quick=[DENSE, SMALL_EMBEDDING])},
    measure=measure,
    judge=judge,
)
