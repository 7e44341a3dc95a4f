"""Dense apply: one variable of 32 million floats.

It is bound by memory: var, m and v are read and written, and the gradient is read,
which makes seven streams of four bytes an element. With a reader, who holds the old
values of var, the new values go into memory of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from harness import adam, contenders, gradients
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    at_most,
    times_faster,
)
from harness.timing import race


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times all contenders at one point."""
    rng = np.random.default_rng(3)
    shape = (point["floats"],)
    variable = gradients.aligned(rng.uniform(-0.05, 0.05, shape).astype(np.float32))
    batches = [[gradients.dense(rng, shape)] for _ in range(2)]
    entries = [
        contenders.raw_op([variable], batches),
        contenders.raw_op([variable], batches, is_read=True),
        contenders.keras_adam_async([variable], batches),
        contenders.v1_adam_async([variable], batches),
        contenders.floor([variable], batches),
        contenders.resource_apply_adam([variable], batches),
        *contenders.stock_keras_adams([variable], batches),
    ]
    for contender in entries:
        adam.check(contender, [variable], batches)
    return race(entries, point, rounds, bytes_moved=7 * 4 * point["floats"])


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    return [
        verdict
        for ours in (
            contenders.RAW_OP,
            contenders.KERAS_ADAM_ASYNC,
            contenders.V1_ADAM_ASYNC,
        )
        for verdict in times_faster(
            measurements, ours, contenders.RESOURCE_APPLY_ADAM, 1.4
        )
    ] + at_most(measurements, contenders.BESIDE_A_READER, contenders.RAW_OP, 1.3)


BENCHMARK = Benchmark(
    title="Dense apply: one variable of 32M floats",
    axes={"floats": Axis([32_000_000], quick=[10_007])},
    measure=measure,
    judge=judge,
)
