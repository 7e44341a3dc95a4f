"""Training of many embedding tables by `tfs.keras.fit`: a cluster against one process.

26 tables, a batch of 512 examples with one id of each, two dense layers behind them.
Two workers, two parameter servers and the coordinator, processes on this machine, train
the model asynchronously and with `tfs.keras.SyncReplicas`; one process trains it by
Keras' own `Model.fit`. Each makes single steps, and 16 in an execution.

A sample is the time of a gradient, taken over an epoch. Before, tables are held to
those that one process trained, and after, the number of updates to that of the steps.
RPCs are counted by gRPC's own log, in a cluster of its own, since that log takes time.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from harness import replicas
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    describe,
    times_faster,
)

AT_ONCE = 16


def _contender(sync: bool, steps: int) -> dict[str, Any]:
    return {"sync": sync, "steps": steps}


ALONE = "one process"
ASYNCHRONOUS = "asynchronous"
SYNCHRONOUS = "SyncReplicas"


def at_once(name: str) -> str:
    """The name of a contender that makes several steps in an execution."""
    return f"{name}, {AT_ONCE} steps at once"


_CLUSTER = {
    ASYNCHRONOUS: _contender(False, 1),
    at_once(ASYNCHRONOUS): _contender(False, AT_ONCE),
    SYNCHRONOUS: _contender(True, 1),
    at_once(SYNCHRONOUS): _contender(True, AT_ONCE),
}
_ALONE = {ALONE: _contender(False, 1), at_once(ALONE): _contender(False, AT_ONCE)}
# Milliseconds of CPU, and RPCs, for a gradient.
_AT_MOST = {at_once(ASYNCHRONOUS): (9, 10), ASYNCHRONOUS: (15, 14)}
_MODEL = {"tables": 26, "width": 16, "examples": 512}
_REHEARSED = 2
_WORKERS = 2
_SERVERS = 2
# Whole executions of each worker, and enough that the end of an epoch, where workers
# wait for one another, is a small part.
_STEPS_OF_EXECUTIONS = _WORKERS * AT_ONCE
_EPOCHS = 2
_SECS_PER_EPOCH = 1.0
_COUNTED_STEPS = 2 * _STEPS_OF_EXECUTIONS


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Runs all in turns."""
    model = {**_MODEL, **point}
    turns = max(1, rounds // 3)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(_started(_CLUSTER, model))
        alone = stack.enter_context(_started(_ALONE, model))
        tasks = dict.fromkeys(_CLUSTER, cluster) | dict.fromkeys(_ALONE, alone)
        trained = {}
        for name, task in tasks.items():
            task.chief("open", name)
            trained[name] = np.asarray(task.chief("rehearse", name))
        for name, contender in _CLUSTER.items():
            expected = trained[ALONE if contender["steps"] == 1 else at_once(ALONE)]
            # Of how far the row has moved that has moved most.
            moved = np.max(np.abs(expected - 1))
            assert moved > 1e-3, expected
            np.testing.assert_allclose(
                trained[name], expected, atol=moved / 50, err_msg=name
            )
        made = dict.fromkeys(tasks, 0)

        def run(name: str, steps: int, epochs: int) -> tuple[list[float], list[float]]:
            """Seconds of a gradient in each epoch, wall and processor time."""
            times = tasks[name].chief("run", name, steps, epochs, tasks[name].pids)
            made[name] += steps * (1 + epochs)
            wall, cpu = ([one / steps for one in kind] for kind in times)
            return wall, cpu

        steps = {}
        for name in tasks:
            (probed,), _ = run(name, _STEPS_OF_EXECUTIONS, 1)
            executions = _SECS_PER_EPOCH / probed / _STEPS_OF_EXECUTIONS
            steps[name] = max(2, round(executions)) * _STEPS_OF_EXECUTIONS
        wall: dict[str, list[float]] = {name: [] for name in tasks}
        cpu: dict[str, list[float]] = {name: [] for name in tasks}
        names = list(tasks)
        for number in range(turns):
            first = number % len(names)
            for name in [*names[first:], *names[:first]]:
                walls, cpus = run(name, steps[name], _EPOCHS)
                wall[name] += walls
                cpu[name] += cpus
        for name, task in tasks.items():
            contender = {**_CLUSTER, **_ALONE}[name]
            of_all = _WORKERS if contender["sync"] else 1
            expected = _REHEARSED * contender["steps"] + made[name] / of_all
            updates = task.chief("updates", name)
            assert updates == expected, (name, updates, expected)
    calls = _calls(model)
    return [
        Measurement(
            name,
            point,
            "s",
            wall[name],
            cpu=statistics.median(cpu[name]),
            counts={"examples": model["examples"]},
            sent={"RPCs": calls[name]} if name in calls else None,
        )
        for name in tasks
    ]


def _started(contenders: Mapping[str, Any], model: Mapping[str, Any], env=None):
    of_cluster = contenders is _CLUSTER
    return replicas.start(
        _WORKERS if of_cluster else 1,
        contenders,
        model,
        num_ps=_SERVERS if of_cluster else 0,
        program="fit_trainer.py",
        coordinated=of_cluster,
        env=env,
    )


def _calls(model: Mapping[str, Any]) -> dict[str, float]:
    """Counts the calls that tasks make for a gradient.

    Two trainings differ by an epoch: what each of them does once is not counted.
    """
    calls = {}
    with _started(_CLUSTER, model, replicas.LOG_CALLS) as cluster:
        for name in _CLUSTER:
            cluster.chief("open", name)
            counted = [cluster.calls_made()]
            for epochs in (1, 1, 2):
                cluster.chief("run", name, _COUNTED_STEPS, epochs, [])
                counted.append(cluster.calls_made())
            shorter, longer = counted[2] - counted[1], counted[3] - counted[2]
            calls[name] = (longer - shorter) / _COUNTED_STEPS
    return calls


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Holds the figures to the targets."""
    singly, many = ASYNCHRONOUS, at_once(ASYNCHRONOUS)
    verdicts = [
        *times_faster(measurements, many, ALONE, 0.8),
        *times_faster(measurements, many, at_once(ALONE), 0.6),
        *times_faster(measurements, singly, ALONE, 0.55),
        *times_faster(measurements, SYNCHRONOUS, singly, 0.8),
        *times_faster(measurements, at_once(SYNCHRONOUS), many, 0.8),
    ]
    for m in measurements:
        if m.contender in _AT_MOST:
            cpu, calls = _AT_MOST[m.contender]
            at = f"a gradient of {m.contender} ({describe(m.point)})"
            made = (m.sent or {})["RPCs"]
            spent = 1e3 * (m.cpu or 0)
            verdicts += [
                Verdict(f"at most {cpu} ms of CPU for {at}", spent, spent <= cpu),
                Verdict(f"at most {calls} RPCs for {at}", made, made <= calls),
            ]
    return verdicts


BENCHMARK = Benchmark(
    title="Many embedding tables by tfs.keras.fit, 2 workers and 2 parameter servers",
    axes={
        "ids": Axis(["zipf", "uniform"], quick=["zipf"]),
        "rows": Axis([100_000], quick=[1000]),
    },
    measure=measure,
    judge=judge,
)
