"""How evenly parameter servers share the work of one `DistributedEmbedding`.

One worker trains 26 tables and two dense layers, on 1, 2 and 4 parameter servers. A
sample is the CPU time that a server takes for a step; all make equally many steps.
Before that, trained rows are compared with those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from harness import replicas
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict, describe

_CONTENDERS = {
    "embedding": {
        "tables": "distributed",
        "sync": False,
        "inner": "AdamAsync",
        "steps": 1,
    }
}
_MODEL = {"tables": 26, "rows": 100_000, "width": 16, "examples": 2048, "ids": "zipf"}
_REHEARSED_STEPS = 2
_STEPS = 60
_REACH = 1.1


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Trains, and reads the processes' clocks."""
    model = {**_MODEL, "rows": point["rows"]}
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
        clocks = []
        for _ in range(max(2, rounds // 3) + 1):
            cluster.chief("run", "embedding", _STEPS)
            clocks.append(cluster.cpu_secs("ps"))
    samples = np.diff(clocks, axis=0) / _STEPS
    return [
        Measurement(f"parameter server {server}", point, "s", list(column))
        for server, column in enumerate(samples.T.tolist())
    ]


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
    """Compares the figures with the target."""
    medians: dict[str, list[float]] = {}
    for m in measurements:
        medians.setdefault(describe(m.point), []).append(m.median)
    claim = f"no server works more than {_REACH:g} times as long as another"
    verdicts = []
    for point, of_servers in medians.items():
        ratio = max(of_servers) / min(of_servers)
        verdicts.append(Verdict(f"{claim} ({point})", ratio, ratio <= _REACH))
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
