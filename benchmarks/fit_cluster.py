"""Training of many embedding tables by `tfs.keras.fit`: a cluster against one process.

26 tables, a batch of examples with one id of each, two dense layers behind them. Two
workers, two parameter servers and the coordinator, processes on this machine, train the
model asynchronously and with `tfs.keras.SyncReplicas`; one process trains it by Keras'
own `Model.fit`. Each makes single steps, and 16 in an execution. A second cluster does
the same by gRPC alone.

A sample is the time of a gradient, taken over an epoch. Before, tables are held to
those that one process trained, and after, the number of updates to that of the steps.
Calls are counted by logs, in a cluster of its own, since those take time.
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
    by_grpc,
    describe,
    share_of_grpc,
    times_faster,
)

from tf_syncrep.python.distribute import wire

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
_BY_GRPC = {by_grpc(name): contender for name, contender in _CLUSTER.items()}
_ALONE = {ALONE: _contender(False, 1), at_once(ALONE): _contender(False, AT_ONCE)}
# Of the CPU time that gRPC takes, at most, with batches of this size.
_SMALL = 512
_SHARES = {
    ASYNCHRONOUS: 0.66,
    at_once(ASYNCHRONOUS): 0.7,
    SYNCHRONOUS: 0.55,
    at_once(SYNCHRONOUS): 0.65,
}
# How fast single steps and several at once are, against one process, by batch size.
_AGAINST_ALONE = {512: (0.65, 0.9), 2048: (0.85, 0.95), 8192: (0.9, 0.95)}
_CALLS_AT_MOST = {at_once(ASYNCHRONOUS): 10, ASYNCHRONOUS: 14}
_MODEL = {"tables": 26, "width": 16, "ids": "zipf"}
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
        layers = {wire.VARIABLE: wire.GRPC}
        tasks = {
            **dict.fromkeys(_CLUSTER, stack.enter_context(_started(_CLUSTER, model))),
            **dict.fromkeys(
                _BY_GRPC, stack.enter_context(_started(_BY_GRPC, model, layers))
            ),
            **dict.fromkeys(_ALONE, stack.enter_context(_started(_ALONE, model))),
        }
        trained = {}
        for name, task in tasks.items():
            task.chief("open", name)
            trained[name] = np.asarray(task.chief("rehearse", name))
        for name, contender in (_CLUSTER | _BY_GRPC).items():
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
            contender = (_CLUSTER | _BY_GRPC | _ALONE)[name]
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
            sent={"calls": calls[name]} if name in calls else None,
        )
        for name in tasks
    ]


def _started(contenders: Mapping[str, Any], model: Mapping[str, Any], env=None):
    of_cluster = contenders is not _ALONE
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
        *times_faster(measurements, SYNCHRONOUS, singly, 0.8),
        *times_faster(measurements, at_once(SYNCHRONOUS), many, 0.8),
    ]
    for examples, (one_step, several) in _AGAINST_ALONE.items():
        found = [m for m in measurements if m.point["examples"] == examples]
        verdicts += times_faster(found, singly, ALONE, one_step)
        verdicts += times_faster(found, many, at_once(ALONE), several)
    small = [m for m in measurements if m.point["examples"] == _SMALL]
    for name, most in _SHARES.items():
        verdicts += share_of_grpc(small, name, most)
    for m in measurements:
        at = f"{m.contender} ({describe(m.point)})"
        if m.contender in _CALLS_AT_MOST:
            most, made = _CALLS_AT_MOST[m.contender], (m.sent or {})["calls"]
            verdicts.append(
                Verdict(f"at most {most} calls for {at}", made, made <= most)
            )
    return verdicts


BENCHMARK = Benchmark(
    title="Many embedding tables by tfs.keras.fit, 2 workers and 2 parameter servers",
    axes={
        "examples": Axis([512, 2048, 8192], quick=[64]),
        "rows": Axis([100_000], quick=[1000]),
    },
    measure=measure,
    judge=judge,
)
