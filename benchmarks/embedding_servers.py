"""How evenly parameter servers share the work of one `DistributedEmbedding`.

One worker trains 26 tables and two dense layers, on 1, 2 and 4 parameter servers. A
sample is the CPU time that a server takes for a step; all make as many steps. Before,
rows that were trained are held to those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from harness import replicas
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict, describe

NAME = "CPU time of a server for a step"
_CONTENDERS = {
    "embedding": {"tables": "distributed", "sync": False, "inner": "AdamAsync"}
}
_MODEL = {"tables": 26, "rows": 100_000, "width": 16, "examples": 2048, "ids": "zipf"}
_REHEARSED_STEPS = 2
_REACH = 1.1


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Trains, and reads the processes' clocks."""
    model = {**_MODEL, "rows": point["rows"]}
    steps = 20 * rounds
    with (
        _start(1, point["servers"], model) as cluster,
        _start(1, 0, model) as alone,
    ):
        trained = [
            task.chief("rehearse", "embedding", _REHEARSED_STEPS)
            for task in (cluster, alone)
            if task.chief("open", "embedding") is None
        ]
        np.testing.assert_allclose(*trained, atol=1e-4)
        cluster.chief("run", "embedding", steps)
        before = cluster.cpu_secs("ps")
        cluster.chief("run", "embedding", steps)
        after = cluster.cpu_secs("ps")
    samples = [(y - x) / steps for x, y in zip(before, after, strict=True)]
    return [Measurement(NAME, point, "s", samples)]


def _start(num_workers, num_ps, model):
    return replicas.start(
        num_workers,
        _CONTENDERS,
        model,
        num_ps=num_ps,
        program="embedding_trainer.py",
        coordinated=num_ps > 0,
    )


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Holds the figures to the target."""
    verdicts = []
    for m in measurements:
        ratio = max(m.samples) / min(m.samples)
        claim = f"no server works more than {_REACH:g} times as long as another"
        verdicts.append(
            Verdict(f"{claim} ({describe(m.point)})", ratio, ratio <= _REACH)
        )
    return verdicts


BENCHMARK = Benchmark(
    title="How evenly servers share the work",
    axes={
        "rows": Axis([100_000], quick=[1000]),
        "servers": Axis([1, 2, 4], quick=[2]),
    },
    measure=measure,
    judge=judge,
)
