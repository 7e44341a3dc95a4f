"""One worker of five is slow: how much a backup worker and spare permits help.

Five workers and two parameter servers, processes on this machine, train six layers of
64 x 64. One worker sleeps, in each step, ten times as long as a step of all five takes
when none sleeps. Either each update waits for its gradient (strict mode), or all five
gradients may come from whoever is fast, or the first four are enough. A sample is the
time of an update, measured over a turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness import replicas
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    times_faster,
)

WORKERS = 5
STRICT = "5 of 5 gradients, strict"
ALL = "5 of 5 gradients"
FOUR = "4 of 5 gradients"
_NAMES = {"strict": STRICT, "all": ALL, "four": FOUR}
_QUORUM = {"strict": WORKERS, "all": WORKERS, "four": WORKERS - 1}
CONTENDERS = {
    name: {
        "sync": "ours",
        "inner": "AdamAsync",
        "quorum": quorum,
        "total": WORKERS,
        "strict": name == "strict",
    }
    for name, quorum in _QUORUM.items()
}
_MODEL = {"rows": 0, "ids": 0}
_PROBED_STEPS = 20
_TURN_SECS = 2.0


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Runs all in turns on one cluster."""
    samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with replicas.start(WORKERS, CONTENDERS, _MODEL) as cluster:
        for name in CONTENDERS:
            cluster.open(name)
            cluster.all("run", name, 0, _PROBED_STEPS, 0.0)
        step = dict.fromkeys(CONTENDERS, _PROBED_STEPS)
        step["strict"] += _PROBED_STEPS
        balanced = cluster.all("run", "strict", 0, step["strict"], 0.0) / _PROBED_STEPS
        slow = point["sleeps for"] * balanced
        updates = {
            "strict": max(2, round(_TURN_SECS / (balanced + slow))),
            "all": max(2, round(_TURN_SECS / balanced / 2)),
            "four": max(2, round(_TURN_SECS / balanced)),
        }
        for number in range(max(2, rounds // 2)):
            for name in list(CONTENDERS)[:: 1 if number % 2 else -1]:
                before, _ = cluster.chief("read", name)
                target = before + updates[name]
                seconds = cluster.each(
                    "run",
                    [
                        (name, 0, target, slow if i == WORKERS - 1 else 0.0)
                        for i in range(WORKERS)
                    ],
                )
                after, _ = cluster.chief("read", name)
                assert target <= after <= target + 1, f"{after} updates, not {target}"
                samples[name].append(seconds / updates[name])
    return [
        Measurement(
            _NAMES[name],
            point,
            "s",
            samples[name],
            counts={"gradients": _QUORUM[name], "updates": 1},
        )
        for name in CONTENDERS
    ]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    return [
        *times_faster(measurements, FOUR, STRICT, 5),
        *times_faster(measurements, ALL, STRICT, 3),
    ]


BENCHMARK = Benchmark(
    title="A backup worker: one of 5 sleeps ten times as long as a step takes",
    axes={"sleeps for": Axis([10], quick=[2])},
    measure=measure,
    judge=judge,
)
