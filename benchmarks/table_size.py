"""Sparse apply on tables of different length: the time may not grow with the table.

Every call gets other random rows. What growth is left is the memory's: a longer table
misses the caches and the translation buffers more often, and the plain loop beside it
shows by how much.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from harness import adam, contenders
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict
from harness.timing import race
from sparse_apply import (
    bytes_moved,
    check_on_distinct_rows,
    make_batches,
    make_table,
)

# How much more than the plain loop's time ours may grow, from one length to the next.
REACH = 1.2


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times the op and the plain loop on one table."""
    rng = np.random.default_rng(2)
    table = make_table(rng, point["rows"])
    batches = make_batches(rng, point)
    raw_op = contenders.raw_op([table], batches)
    adam.check(raw_op, [table], batches)
    check_on_distinct_rows(contenders.floor)
    floor = contenders.floor([table], batches)
    floor.step(0)
    # More rounds than elsewhere: there are only two, and both are fast.
    return race([raw_op, floor], point, 4 * rounds, bytes_moved(batches))


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares each table with the one before it."""
    medians = {(m.contender, m.point["rows"]): m.median for m in measurements}
    lengths = sorted({m.point["rows"] for m in measurements})
    verdicts = []
    for short, long in itertools.pairwise(lengths):
        ours, floor = (
            medians[name, long] / medians[name, short]
            for name in (contenders.RAW_OP, contenders.FLOOR)
        )
        verdicts.append(
            Verdict(
                claim=(
                    f"{contenders.RAW_OP}: from {short:,} to {long:,} rows the time "
                    f"grows at most {REACH:g} times as much as the plain loop's "
                    f"(ours x{ours:.2f}, the loop's x{floor:.2f})"
                ),
                value=ours / floor,
                met=ours / floor <= REACH,
            )
        )
    return verdicts


BENCHMARK = Benchmark(
    title="Sparse apply on tables of 0.1M, 1M and 4M rows of 64 floats",
    axes={
        "rows": Axis([100_000, 1_000_000, 4_000_000], quick=[1_000, 5_000]),
        "indices": Axis([4096], quick=[64]),
        "distribution": Axis(["uniform"]),
    },
    measure=measure,
    judge=judge,
)
