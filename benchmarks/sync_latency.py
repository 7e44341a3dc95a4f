"""The cost of an update that has nothing to do, which is the protocol's latency.

Workers and 2 parameter servers, processes on this machine, train two small tables, one
on each server, with batches without a single row. So the gradients are empty, and only
the calls are left. A sample is the time in which each worker makes one step, measured
over a turn; with SyncReplicas that is the time of an update. Without it the same steps
are made asynchronously. Steps that only take the batch show how much of that is the
coordinator's scheduling. Hops are counted in the graphs of the functions by
tests/helpers/hops.py. Two of them are a round trip; that of the step itself, from the
coordinator to the worker and back, is not counted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from harness import replicas
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    describe,
)

SYNC = "tfs.keras.SyncReplicas"
ASYNCHRONOUS = "asynchronous"
EMPTY = "steps that do nothing"
_CONTENDERS = {
    SYNC: {"sync": True, "inner": "AdamAsync"},
    ASYNCHRONOUS: {"sync": False, "inner": "AdamAsync"},
}
_MODEL = {"rows": 16, "ids": 0, "tables": 2}
_STEPS_TRACED = 1
_STEPS_PROBED = 5
_TURN_SECS = 0.2
_WORKERS_OF_TARGET = 4
_MOST_MS = 7


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Runs all in turns on one cluster."""
    workers = point["workers"]
    with replicas.start(
        workers,
        _CONTENDERS,
        _MODEL,
        program="keras_trainer.py",
        coordinated=True,
    ) as cluster:
        runs = {
            name: functools.partial(cluster.all, "run", name) for name in _CONTENDERS
        } | {EMPTY: functools.partial(cluster.all, "run_empty")}
        for name in _CONTENDERS:
            cluster.chief("open", name)
        for run in runs.values():
            run(_STEPS_TRACED)
        samples, made = replicas.take_turns(
            runs,
            {name: run(_STEPS_PROBED) / _STEPS_PROBED for name, run in runs.items()},
            2 * rounds,
            _TURN_SECS,
        )
        for name, contender in _CONTENDERS.items():
            steps = _STEPS_TRACED + _STEPS_PROBED + made[name]
            expected = steps if contender["sync"] else steps * workers
            updates = cluster.chief("updates", name)
            assert updates == expected, f"{name}: {updates} updates, not {expected}"
        hops = {name: cluster.chief("hops", name) for name in _CONTENDERS}
    return [
        Measurement(name, point, "s", samples[name], hops=hops.get(name))
        for name in runs
    ]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the target."""
    return [
        Verdict(
            f"at most {_MOST_MS:g} ms for an update of {SYNC} ({describe(m.point)})",
            1e3 * m.median,
            1e3 * m.median <= _MOST_MS,
        )
        for m in measurements
        if m.contender == SYNC and m.point["workers"] == _WORKERS_OF_TARGET
    ]


BENCHMARK = Benchmark(
    title="An update without any gradient, by workers and 2 parameter servers",
    axes={"workers": Axis([1, 2, 4], quick=[2])},
    measure=measure,
    judge=judge,
)
