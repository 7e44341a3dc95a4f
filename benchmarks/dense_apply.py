"""Dense apply: one variable of 32 million floats.

It is bound by memory: var, m and v are read and written, and the gradient is read,
which makes seven streams of four bytes an element. With a reader, who holds the old
values of var, the new values go into memory of their own. Our other optimizers, with
fewer slots, are beside TensorFlow's own op of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from harness import adam, contenders, gradients, rules, stock_ops
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

Batches = list[list[gradients.Gradient]]


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times all contenders at one point."""
    rng = np.random.default_rng(3)
    shape = (point["floats"],)
    variable = gradients.aligned(rng.uniform(-0.05, 0.05, shape).astype(np.float32))
    batches = [[gradients.dense(rng, shape)] for _ in range(2)]
    # Each race has memory of its own, which is free when the next one begins.
    measured = _race_of_adam(point, rounds, variable, batches)
    for optimizer in stock_ops.OPTIMIZERS:
        measured += _race_of_rule(optimizer, point, rounds, variable, batches)
    return measured


def _race_of_adam(
    point: Point, rounds: int, variable: np.ndarray, batches: Batches
) -> list[Measurement]:
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


def _race_of_rule(
    optimizer: rules.Optimizer,
    point: Point,
    rounds: int,
    variable: np.ndarray,
    batches: Batches,
) -> list[Measurement]:
    """Times one optimizer, whose slots are as large as the variable."""
    entries = [
        make(optimizer, [variable], batches)
        for make in (rules.raw_op, rules.keras, stock_ops.dense)
    ]
    for contender in entries:
        rules.check(optimizer, contender, [variable], batches)
    streams = 3 + 2 * len(optimizer.slots)
    return race(entries, point, rounds, bytes_moved=streams * 4 * point["floats"])


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    verdicts = []
    for ours in (
        contenders.RAW_OP,
        contenders.KERAS_ADAM_ASYNC,
        contenders.V1_ADAM_ASYNC,
    ):
        verdicts += times_faster(
            measurements, ours, contenders.RESOURCE_APPLY_ADAM, 1.4
        )
    verdicts += at_most(
        measurements, contenders.BESIDE_A_READER, contenders.RAW_OP, 1.3
    )
    for optimizer in stock_ops.OPTIMIZERS:
        for ours in (optimizer.raw_op, optimizer.keras):
            verdicts += times_faster(measurements, ours, stock_ops.name(optimizer), 1)
    return verdicts


BENCHMARK = Benchmark(
    title="Dense apply: one variable of 32M floats",
    axes={"floats": Axis([32_000_000], quick=[10_007])},
    measure=measure,
    judge=judge,
)
