"""Checkpoints of a training that goes on, beside the disk's own speed.

Two workers train a table of rows of 64 floats, with AdamAsync and SyncReplicas, on two
parameter servers. Each sample of a checkpoint is the time until its bytes are on the
disk (`sync`). Beside it the same number of bytes is written alone, at the same speed,
by as many threads as there are servers. Updates are timed on the coordinator. Before
that, the contents of a checkpoint are compared with the variables.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from harness import replicas
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict, describe

WIDTH = 64
FULL, CHANGED = "ours, full", "ours, what has changed"
ALONE = "the same bytes alone"
RESTORED, READ = "restoring", "reading the same bytes"
STEP, STEP_WHILE, GAP = "a step", "a step meanwhile", "longest gap meanwhile"
MEDIAN_STEP = "a step, the median"
STEP_ALONE = "a step while the bytes are written alone"
TENSORFLOW = "tf.train.Checkpoint, training stopped"
KERAS = "Keras' save_weights, training stopped"
_UPDATES = 1000  # between a full checkpoint and what has changed since
_SECS = 5.0
# Keras needs minutes for more.
_MOST_FOR_KERAS = 0.3
_MOST_IF_SLOW = 1


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Trains and writes."""
    if point["max MB/s"] and point["GB"] > _MOST_IF_SLOW:
        return []
    rows = int(point["GB"] * 1e9 / (3 * 4 * WIDTH))
    model = {
        "rows": rows,
        "width": WIDTH,
        "tables": 4,
        "examples": 512,
        "ids": point["ids"],
        "max_bytes_per_sec": point["max MB/s"] * 1e6 or None,
    }
    updates = _UPDATES if rounds > 2 else 10
    samples: dict[str, list[float]] = {}
    counts: dict[str, Mapping[str, float]] = {}

    def add(name: str, seconds: float) -> None:
        samples.setdefault(name, []).append(seconds)

    with replicas.start(
        2, {}, model, program="checkpoint_trainer.py", coordinated=True
    ) as cluster:
        tell = cluster.chief
        tell("start")
        for _ in range(max(2, rounds // 5)):
            undisturbed = tell("gaps", _SECS if updates > 10 else 0.5)
            add(STEP, _mean(undisturbed))
            add(MEDIAN_STEP, statistics.median(undisturbed))
            full = tell("save")
            assert full["is_full"]
            tell("wait_for_updates", updates)
            changed = tell("save")
            assert not changed["is_full"]
            add(FULL, full["secs"])
            add(CHANGED, changed["secs"])
            alone = tell("write_alone", full["bytes"])
            add(ALONE, alone["secs"])
            for name, gaps in ((STEP_WHILE, full["gaps"]), (STEP_ALONE, alone["gaps"])):
                if len(gaps) > 1:
                    add(name, _mean(gaps))
            add(GAP, max(full["gaps"]))
            counts[FULL], counts[CHANGED] = _counts(full), _counts(changed)
        tell("stop")
        tell("check")
        for _ in range(2):
            restoring, reading = tell("restore")
            add(RESTORED, restoring)
            add(READ, reading)
        add(TENSORFLOW, tell("tensorflow"))
        if point["GB"] <= _MOST_FOR_KERAS:
            add(KERAS, tell("keras"))
        tell("clean")
    return [
        Measurement(name, point, "s", found, counts=counts.get(name))
        for name, found in samples.items()
    ]


def _mean(gaps: Sequence[float]) -> float:
    """Divides the time by its updates; the last one is under way."""
    return sum(gaps) / (len(gaps) - 0.5)


def _counts(saved: Mapping[str, Any]) -> dict[str, float]:
    return {
        "MB written": saved["bytes"] / 1e6,
        "rows": saved["rows"],
        "MB kept": saved["kept"] / 1e6,
        "MB more on the coordinator": saved["grown"] / 1e6,
    }


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    by_point: dict[str, dict[str, Measurement]] = {}
    for m in measurements:
        by_point.setdefault(describe(m.point), {})[m.contender] = m
    verdicts = []
    for point, found in by_point.items():

        def at_most(
            claim: str, value: float, reach: float, point: str = point
        ) -> Verdict:
            return Verdict(
                f"{claim}, at most {reach:g} ({point})", value, value <= reach
            )

        median = {name: m.median for name, m in found.items()}
        full, changed = found[FULL].counts or {}, found[CHANGED].counts or {}
        row_bytes = 3 * 4 * WIDTH / 1e6
        if "max MB/s 0," in point:
            ratio = median[FULL] / median[ALONE]
            verdicts.append(at_most("full against the bytes alone", ratio, 1.2))
        verdicts += [
            at_most("gap, ms", 1e3 * median[GAP], max(200, 5e3 * median[MEDIAN_STEP])),
            at_most(
                "changed: bytes against those of rows",
                changed["MB written"] / (changed["rows"] * row_bytes),
                1.1,
            ),
            at_most(
                "MB more on the coordinator", full["MB more on the coordinator"], 16
            ),
            at_most("restoring against reading", median[RESTORED] / median[READ], 1.5),
        ]
        if STEP_WHILE in median:
            speed = median[STEP] / median[STEP_WHILE]
            claim = f"steps a second meanwhile, at least 0.9 ({point})"
            verdicts.append(Verdict(claim, speed, speed >= 0.9))
        if {STEP_WHILE, STEP_ALONE} <= median.keys():
            speed = median[STEP_ALONE] / median[STEP_WHILE]
            claim = (
                f"of those while the bytes are written alone, at least 0.9 ({point})"
            )
            verdicts.append(Verdict(claim, speed, speed >= 0.9))
        # The target is for checkpoints between which few rows were touched.
        if 6 * changed["rows"] <= full["rows"]:
            fewer = full["MB written"] / changed["MB written"]
            claim = f"fewer bytes of what has changed, at least 6 times ({point})"
            verdicts.append(Verdict(claim, fewer, fewer >= 6))
        for name in (TENSORFLOW, KERAS):
            if name in median:
                shorter = median[name] / median[GAP]
                claim = f"times shorter gaps than {name}, at least 1 ({point})"
                verdicts.append(Verdict(claim, shorter, shorter >= 1))
    return verdicts


BENCHMARK = Benchmark(
    title="Checkpoints while training goes on",
    axes={
        "ids": Axis(["zipf"]),
        # This is the limit of each server; 0 is for no limit.
        "max MB/s": Axis([0, 50], quick=[0]),
        "GB": Axis([0.25, 1, 4], quick=[0.01]),
    },
    measure=measure,
    judge=judge,
)
