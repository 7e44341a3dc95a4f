"""The loss after so many examples, with and without synchrony.

4 workers and 2 parameter servers, processes on this machine, train two dense layers on
examples of a planted model with noise, by plain gradient descent: from several initial
weights, with several learning rates, each the same for both. Asynchronous workers make
an update of each gradient, which was computed on weights that the others have changed
meanwhile. Synchronous workers make an update of the mean of 4 gradients, so that there
are a fourth as many updates, and no gradient is out of date. The loss is that of
examples that nobody trains on; report.py draws it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness import replicas
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict

WORKERS = 4
SYNC = "tfs.keras.SyncReplicas"
ASYNCHRONOUS = "asynchronous"
_CONTENDERS = {SYNC: True, ASYNCHRONOUS: False}
_MODEL = {
    "rows": 0,
    "ids": 0,
    "layers": 2,
    "width": 64,
    "planted": True,
    "batches": 200,
}
_EXAMPLES = 32  # in the batch of a step; harness/replica.py
SMALL, MEDIUM, LARGE = 1.0, 8.0, 32.0
_SEEDS = 4
_READINGS = 10
_STEPS = 20  # of each worker, from one reading of the loss to the next


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Trains from each set of initial weights, and reads the loss on the way."""
    seeds, readings = (_SEEDS, _READINGS) if rounds > 5 else (2, 2)
    contenders = {
        name: {
            "sync": sync,
            "inner": "SGD",
            "options": {"learning_rate": point["learning rate"]},
        }
        for name, sync in _CONTENDERS.items()
    }
    with replicas.start(
        WORKERS,
        contenders,
        _MODEL,
        program="keras_trainer.py",
        coordinated=True,
    ) as cluster:
        curves: dict[str, list[list[float]]] = {name: [] for name in contenders}
        for name in contenders:
            cluster.chief("open", name)
        for seed in range(seeds):
            for name in contenders:
                cluster.chief("restart", name, seed)
                losses = [cluster.chief("held_out_loss", name)]
                for _ in range(readings):
                    cluster.chief("run", name, _STEPS)
                    losses.append(cluster.chief("held_out_loss", name))
                curves[name].append(losses)
        # Keras 3 miscounts the updates that SGD makes without synchrony.
        updates, expected = cluster.chief("updates", SYNC), seeds * readings * _STEPS
        assert updates == expected, f"{SYNC}: {updates} updates, not {expected}"
    per_reading = _STEPS * WORKERS * _EXAMPLES
    return [
        Measurement(
            name,
            point,
            "loss",
            [losses[-1] for losses in curves[name]],
            curves={
                "examples": [per_reading * i for i in range(readings + 1)],
                "losses": curves[name],
            },
        )
        for name in contenders
    ]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the last losses at the large learning rate with one another."""
    last = {
        m.contender: statistics.median(m.samples)
        for m in measurements
        if m.point["learning rate"] == LARGE
    }
    share = last[SYNC] / last[ASYNCHRONOUS]
    claim = f"{SYNC} has at most half the loss at learning rate {LARGE:g}"
    return [Verdict(claim, share, share <= 0.5)]


BENCHMARK = Benchmark(
    title="Loss after the same examples, by 4 workers and 2 parameter servers",
    axes={"learning rate": Axis([SMALL, MEDIUM, LARGE], quick=[LARGE])},
    measure=measure,
    judge=judge,
)
