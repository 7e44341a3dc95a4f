"""Sparse apply: rows of a table with a million, a few thousand or very many.

This is what training an embedding table does in each step. All optimizers of Keras 3
but SGD without a momentum, and stock Adam in any Keras, move every row of the table.
AdamAsync, our other optimizers, PyTorch's SparseAdam and the plain loops move the rows
that the gradient names. With very many rows only the ops are measured, beside the plain
loops, which move a row once for each time that it is named, and AdamAsync beside itself
on one thread. The bytes are those of the named rows: each row of the table and its
slots is read and written once, and gradients and indices are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import rule_reference
from harness import adam, contenders, gradients, one_thread, rules
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

WIDTH = 64
# So many batches do not fit into a cache.
BATCHES = 48
# The time of a step with so many rows is that of arithmetic and memory, so that fewer
# batches suffice.
MANY = 65_536
FEW_BATCHES = 3


def make_batches(
    rng: np.random.Generator, point: Point, count: int = BATCHES
) -> list[list[gradients.Gradient]]:
    """Batches for one table of `point["rows"]` rows."""
    sampler = gradients.RowSampler(point["distribution"], point["rows"], rng)
    return [
        [gradients.sparse(rng, sampler.draw(point["indices"]), WIDTH)]
        for _ in range(count)
    ]


def bytes_moved(
    batches: Sequence[Sequence[gradients.Gradient]], floats_of_row: int = 3 * WIDTH
) -> int:
    """The bytes that a step has to read and write at least, the mean over the batches.

    `floats_of_row`: how many floats the table and its slots have for a row; by default
    those of Adam.
    """
    total = 0
    for (gradient,) in batches:
        assert gradient.indices is not None
        distinct = len(np.unique(gradient.indices))
        total += 2 * 4 * floats_of_row * distinct  # read and written
        total += gradient.values.nbytes + gradient.indices.nbytes
    return total // len(batches)


def make_table(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Initial values of a table."""
    return gradients.aligned(rng.uniform(-0.05, 0.05, (rows, WIDTH)).astype(np.float32))


def check_on_distinct_rows(
    make: Callable[..., contenders.Contender | list[contenders.Contender]],
    steps: int = 3,
) -> None:
    """Compares contenders with the twin where no row occurs twice in a batch.

    If a row does, the plain loop moves it twice, and Keras 3's Adam sums the squares of
    its gradients instead of squaring their sum.
    """
    rng = np.random.default_rng(8)
    table = make_table(rng, 1000)
    batches = [
        [gradients.sparse(rng, rng.permutation(len(table))[:300], WIDTH)]
        for _ in range(steps)
    ]
    made = make([table], batches)
    for contender in made if isinstance(made, list) else [made]:
        adam.check(contender, [table], batches, steps)


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times all contenders at one point."""
    if point["indices"] >= MANY:
        return _measure_many(point, rounds)
    rng = np.random.default_rng(1)
    table = make_table(rng, point["rows"])
    batches = make_batches(rng, point)

    of_touched_rows = [
        contenders.keras_adam_async([table], batches),
        contenders.v1_adam_async([table], batches),
        contenders.raw_op([table], batches),
    ]
    if contenders.has_torch():
        of_touched_rows.append(contenders.torch_sparse_adam([table], batches))
    of_all_rows = [
        *contenders.stock_keras_adams([table], batches),
        contenders.v1_adam([table], batches),
    ]
    floor = contenders.floor([table], batches)

    for contender in of_touched_rows:
        adam.check(contender, [table], batches)
    check_on_distinct_rows(contenders.floor)
    for make in (contenders.stock_keras_adams, contenders.v1_adam):
        check_on_distinct_rows(make, steps=1)
    for contender in (floor, *of_all_rows):
        contender.step(0)

    measured = race(
        [*of_touched_rows, floor, *of_all_rows], point, rounds, bytes_moved(batches)
    )
    for optimizer in rules.OPTIMIZERS:
        ours = [
            make(optimizer, [table], batches) for make in (rules.keras, rules.raw_op)
        ]
        measured += _race_of_rule(optimizer, point, rounds, table, batches, ours)
    return measured


def _race_of_rule(
    optimizer: rules.Optimizer,
    point: Point,
    rounds: int,
    table: np.ndarray,
    batches: list[list[gradients.Gradient]],
    ours: list[contenders.Contender],
) -> list[Measurement]:
    """Times one optimizer in all ways that there are, and the plain loop beside it."""
    for contender in ours:
        rules.check(optimizer, contender, [table], batches)
    rng = np.random.default_rng(8)
    small = make_table(rng, 1000)
    distinct = [
        [gradients.sparse(rng, rng.permutation(len(small))[:300], WIDTH)]
        for _ in range(2)
    ]
    rules.check(optimizer, rules.floor(optimizer, [small], distinct), [small], distinct)
    others = [rules.floor(optimizer, [table], batches)]
    if point["indices"] < MANY:
        others += rules.stock(optimizer, [table], batches)
    for contender in others:
        contender.step(0)
    slots = rule_reference.slot_shape(optimizer.rule, (1, WIDTH))[1]
    floats_of_row = WIDTH + len(optimizer.slots) * slots
    moved = bytes_moved(batches, floats_of_row)
    return race([*ours, *others], point, rounds, moved)


def _of_many(point: Point) -> tuple[np.ndarray, list[list[gradients.Gradient]]]:
    rng = np.random.default_rng(1)
    table = make_table(rng, point["rows"])
    return table, make_batches(rng, point, FEW_BATCHES)


def _raw_op_of_many(point: Point) -> contenders.Contender:
    table, batches = _of_many(point)
    return contenders.raw_op([table], batches)


def _measure_many(point: Point, rounds: int) -> Sequence[Measurement]:
    table, batches = _of_many(point)
    with one_thread.serve(_raw_op_of_many, point) as alone:
        ours = [
            contenders.v1_adam_async([table], batches),
            contenders.raw_op([table], batches),
            alone,
        ]
        for contender in ours:
            adam.check(contender, [table], batches)
        check_on_distinct_rows(contenders.floor)
        floor = contenders.floor([table], batches)
        floor.step(0)
        measured = race([*ours, floor], point, rounds, bytes_moved(batches))
    if point["indices"] == MANY:
        for optimizer in rules.OPTIMIZERS:
            op = rules.raw_op(optimizer, [table], batches)
            measured += _race_of_rule(optimizer, point, rounds, table, batches, [op])
    return measured


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    verdicts = []
    few = [m for m in measurements if m.point["indices"] < MANY]
    for ours in (contenders.KERAS_ADAM_ASYNC, contenders.V1_ADAM_ASYNC):
        for other in (
            contenders.TF_KERAS_ADAM,
            contenders.KERAS_3_ADAM,
            contenders.V1_ADAM,
        ):
            verdicts += times_faster(measurements, ours, other, 150)
        verdicts += times_faster(measurements, ours, contenders.TORCH_SPARSE_ADAM, 2)
        verdicts += at_most(few, ours, contenders.FLOOR, 1.6)
    # The op of each rule has the same reach, up to that many rows.
    up_to_many = [m for m in measurements if m.point["indices"] <= MANY]
    verdicts += at_most(up_to_many, contenders.RAW_OP, contenders.FLOOR, 1.2)
    very_many = [m for m in measurements if m.point["indices"] > MANY]
    verdicts += at_most(very_many, contenders.RAW_OP, contenders.FLOOR, 1.3)
    many = [m for m in measurements if m.point["indices"] >= MANY]
    for optimizer in rules.OPTIMIZERS:
        # Without slots, Keras 3's optimizer moves the named rows alone, too.
        reach = 100 if optimizer.slots else 1
        verdicts += times_faster(measurements, optimizer.keras, optimizer.stock, reach)
        verdicts += at_most(measurements, optimizer.raw_op, optimizer.floor, 1.2)
    alone = contenders.RAW_OP + one_thread.ON_ONE_THREAD
    verdicts += times_faster(many, contenders.RAW_OP, alone, 1.7)
    return verdicts


BENCHMARK = Benchmark(
    title="Sparse apply: a gradient for rows of a table with 1M x 64 floats",
    axes={
        "rows": Axis([1_000_000], quick=[5_000]),
        "indices": Axis([4096, MANY, 1_048_576], quick=[64, MANY]),
        "distribution": Axis(["zipf(1.2)", "uniform"]),
    },
    measure=measure,
    judge=judge,
)
