"""Sparse gradients into an accumulator, and out again.

A step is a number of pushes of 4096 rows of 64 floats, fed to a session, and a take.
All pushes of a step go to the same accumulator, as in a synchronous update.
TensorFlow's accumulator merges two sorted lists at each push, so that a push costs
what is in already; it is left out where that takes many seconds. It needs rows that
are sorted and differ, and so gets no others; where popular rows repeat (zipf), its sums
are wrong, and only its time is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from harness import gradients
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    times_faster,
)
from harness.timing import Contender, race

import tf_syncrep as tfs

OURS = "tf_syncrep's accumulator"
STOCK = "TensorFlow's accumulator"
ROWS = 1_000_000
WIDTH = 64
# Above every step that the accumulator can have come to.
STEP = 1 << 40

_CLASSES = {
    OURS: tfs.train.SparseConditionalAccumulator,
    STOCK: tf.compat.v1.SparseConditionalAccumulator,
}


# Of these each step pushes others. Far more than fit into a cache: it is not in the
# cache of the task that a gradient is computed.
GRADIENTS = 200


def make_gradients(point: Point, count: int) -> list[gradients.Gradient]:
    """Gradients to push."""
    rng = np.random.default_rng(1)
    rows, indices = point["rows"], point["indices"]
    sampler = gradients.RowSampler(point["distribution"], rows, rng)

    def draw() -> np.ndarray:
        if point["distribution"] == "uniform":
            return np.sort(rng.choice(rows, indices, replace=False))
        return np.sort(sampler.draw(indices))

    return [gradients.sparse(rng, draw(), WIDTH) for _ in range(count)]


def make_contender(
    name: str, point: Point, pushed: Sequence[gradients.Gradient]
) -> tuple[Contender, Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """A contender, and a function that makes step 0 and returns what was taken."""
    pushes = point["pushes"]
    with tf.Graph().as_default() as graph:
        accumulator = _CLASSES[name](tf.float32, [point["rows"], WIDTH])
        indices = tf.compat.v1.placeholder(tf.int64, [None])
        values = tf.compat.v1.placeholder(tf.float32, [None, WIDTH])
        push_op = accumulator.apply_grad(indices, values, local_step=STEP)
        taken = accumulator.take_grad(pushes)
    session = tf.compat.v1.Session(graph=graph)
    push = session.make_callable(push_op, feed_list=[indices, values])
    take = session.make_callable(taken.indices.op)

    def push_all(i: int) -> None:
        for k in range(i * pushes, (i + 1) * pushes):
            gradient = pushed[k % len(pushed)]
            push(gradient.indices, gradient.values)

    def step(i: int) -> None:
        push_all(i)
        take()

    def result() -> tuple[np.ndarray, np.ndarray]:
        push_all(0)
        return session.run((taken.indices, taken.values))

    return Contender(name, step, list), result


def check(result, pushes: Sequence[gradients.Gradient]) -> None:
    """Holds what was taken to sums in float64, of some of the columns."""
    columns = slice(0, WIDTH, 16)
    indices_of = [p.indices for p in pushes if p.indices is not None]
    everything = np.concatenate(indices_of)
    rows, positions = np.unique(everything, return_inverse=True)
    sums = np.zeros([len(rows), WIDTH // 16])
    np.add.at(sums, positions, np.concatenate([p.values[:, columns] for p in pushes]))
    counts = np.zeros(len(rows))
    for one in indices_of:
        counts[np.searchsorted(rows, np.unique(one))] += 1
    indices, values = result()
    np.testing.assert_array_equal(indices, rows)
    np.testing.assert_allclose(
        values[:, columns], sums / counts[:, None], rtol=1e-4, atol=1e-4
    )


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times both at one point."""
    pushed = make_gradients(point, max(GRADIENTS, point["pushes"]))
    names = [OURS] if point["pushes"] > 50 else [OURS, STOCK]
    contenders = []
    for name in names:
        contender, result = make_contender(name, point, pushed)
        if name == OURS or point["distribution"] == "uniform":
            check(result, pushed[: point["pushes"]])
        contender.step(0)
        contenders.append(contender)
    # Each value is read when it is pushed, and again or written at the take.
    bytes_moved = 3 * pushed[0].values.nbytes * point["pushes"]
    return race(contenders, point, max(3, rounds // 4), bytes_moved)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Holds the figures to the targets."""
    at_50 = [m for m in measurements if m.point["pushes"] == 50]
    verdicts = times_faster(at_50, OURS, STOCK, 12)
    per_push = {
        (m.point["distribution"], m.point["pushes"]): m.median / m.point["pushes"]
        for m in measurements
        if m.contender == OURS
    }
    for distribution, pushes in per_push:
        if pushes == 200:
            value = per_push[distribution, 200] / per_push[distribution, 8]
            claim = (
                f"{OURS}, {distribution}: one of 200 pushes within 1.15 times one of 8"
            )
            verdicts.append(Verdict(claim, value, value <= 1.15))
    return verdicts


BENCHMARK = Benchmark(
    title="Sparse accumulator: pushes of 4096 x 64 floats for 1M rows, and a take",
    axes={
        "rows": Axis([ROWS], quick=[5_000]),
        "indices": Axis([4096], quick=[64]),
        "distribution": Axis(["uniform", "zipf(1.2)"]),
        "pushes": Axis([8, 50, 200], quick=[3]),
    },
    measure=measure,
    judge=judge,
)
