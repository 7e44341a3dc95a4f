"""Sparse gradients into an accumulator, and out again.

A step is a number of pushes of 4096 rows of 64 floats, one after the other, and a take.
All pushes of a step go to the same accumulator, as in a synchronous update, and are run
by one call of a session: a call for each costs more than a push does. Before each step
its gradients are made, off the clock, and then other memory than theirs is used: in
training there is other work between two updates, too, so that the caches are cold.

Nobody else holds a gradient that has come from another task, and here it is the same:
our accumulator keeps it as it is. If others hold it, too, the accumulator copies it;
that is a second contender.

TensorFlow's accumulator merges two sorted lists at each push, so that the cost of a
push grows with the number of rows that it holds. It is left out where that takes many
seconds. It needs rows that are sorted and distinct, and all contenders get sorted rows.
Where popular rows repeat (zipf), its sums are wrong, and only its time is measured.
Another contender sums such rows first, as TensorFlow's optimizers do, and is right.

Copies alone show what the memory allows: each gradient is copied to the place of the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from harness import gradients, native
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
OURS_COPYING = "tf_syncrep's, gradients that others hold"
STOCK = "TensorFlow's accumulator"
STOCK_SUMMED = "TensorFlow's, equal rows summed before"
COPIES = "copies alone"
ROWS = 1_000_000
WIDTH = 64
# The accumulator never gets to so high a step.
STEP = 1 << 40

_CLASSES = {
    OURS: tfs.train.SparseConditionalAccumulator,
    OURS_COPYING: tfs.train.SparseConditionalAccumulator,
    STOCK: tf.compat.v1.SparseConditionalAccumulator,
    STOCK_SUMMED: tf.compat.v1.SparseConditionalAccumulator,
}


# Each step pushes others of these.
GRADIENTS = 200

# This is far more than a cache holds.
OTHER_FLOATS = 2**24


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
    num_steps = len(pushed) // pushes
    with tf.Graph().as_default() as graph:
        accumulator = _CLASSES[name](tf.float32, [point["rows"], WIDTH])
        kept: dict[Any, np.ndarray] = {}
        stage_ops = []
        for first in range(0, num_steps * pushes, pushes):
            arrays = [
                array
                for gradient in pushed[first : first + pushes]
                for array in gradient.arrays
            ]
            made = [_keep(array, kept) for array in arrays]
            # A staged tensor is handed on, and nobody keeps it, unless it is in a
            # variable.
            if name != OURS_COPYING:
                made = [tf.raw_ops.DeepCopy(x=tensor) for tensor in made]
            stage_ops.append(tf.raw_ops.Stage(values=made, shared_name="gradients"))
        staged = tf.raw_ops.Unstage(
            dtypes=[array.dtype for array in arrays], shared_name="gradients"
        )
        pushed_before = tf.no_op()
        for values, indices in zip(staged[::2], staged[1::2], strict=True):
            values = tf.ensure_shape(values, [point["indices"], WIDTH])
            indices = tf.ensure_shape(indices, [point["indices"]])
            with tf.control_dependencies([pushed_before]):
                if name == STOCK_SUMMED:
                    indices, positions = tf.unique(indices)
                    values = tf.math.unsorted_segment_sum(
                        values, positions, tf.size(indices)
                    )
                pushed_before = accumulator.apply_grad(indices, values, local_step=STEP)
        with tf.control_dependencies([pushed_before]):
            taken = accumulator.take_grad(pushes)
        initialize = tf.compat.v1.global_variables_initializer()
    session = tf.compat.v1.Session(graph=graph)
    session.run(initialize, {initial.deref(): array for initial, array in kept.items()})
    stages = [session.make_callable(stage_op) for stage_op in stage_ops]
    take = session.make_callable(taken.indices.op)
    other_memory = native.Memory((2, OTHER_FLOATS))

    def prepare(i: int) -> None:
        stages[i % num_steps]()
        native.library().floor_copy(
            other_memory.array[0].ctypes.data,
            other_memory.array[1].ctypes.data,
            OTHER_FLOATS,
        )

    def step(i: int) -> None:
        del i
        take()

    def result() -> tuple[np.ndarray, np.ndarray]:
        prepare(0)
        return session.run((taken.indices, taken.values))

    prepare(0)
    take()  # Which makes the session prepare it.
    return Contender(name, step, list, prepare), result


def _keep(array: np.ndarray, kept: dict[Any, np.ndarray]) -> tf.Tensor:
    """A tensor that ops read without a copy, once `kept` is fed to the initializer."""
    initial_value = tf.compat.v1.placeholder(tf.as_dtype(array.dtype), array.shape)
    kept[initial_value.ref()] = array
    return tf.compat.v1.Variable(initial_value, use_resource=True).read_value()


def make_copies(
    point: Point, pushed: Sequence[gradients.Gradient], result_rows: int
) -> Contender:
    """Reads and writes as much as every accumulator has to."""
    pushes = point["pushes"]
    places = max(1, result_rows // point["indices"])
    result = native.Memory((places, point["indices"], WIDTH))
    gradient_size = point["indices"] * WIDTH
    copy = native.library().floor_copy

    def step(i: int) -> None:
        for k in range(pushes):
            values = pushed[(i * pushes + k) % len(pushed)].values
            to = result.array[k % places]
            copy(to.ctypes.data, values.ctypes.data, gradient_size)

    return Contender(COPIES, step, list)


def indices_in(pushes: Sequence[gradients.Gradient]) -> list[np.ndarray]:
    """The rows of each gradient."""
    return [p.indices for p in pushes if p.indices is not None]


def check(result, pushes: Sequence[gradients.Gradient]) -> None:
    """Compares what was taken with sums in float64, in some of the columns."""
    columns = slice(0, WIDTH, 16)
    indices_of = indices_in(pushes)
    rows, positions = np.unique(np.concatenate(indices_of), return_inverse=True)
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
    one_step = pushed[: point["pushes"]]
    has_equal_rows = point["distribution"] != "uniform"
    names = [OURS, OURS_COPYING]
    if point["pushes"] <= 50:
        names += [STOCK, STOCK_SUMMED] if has_equal_rows else [STOCK]
    contenders = []
    for name in names:
        contender, result = make_contender(name, point, pushed)
        if name != STOCK or not has_equal_rows:
            check(result, one_step)
        contenders.append(contender)
    result_rows = len(np.unique(np.concatenate(indices_in(one_step))))
    contenders.append(make_copies(point, pushed, result_rows))
    # Each value is read, and the result is written.
    values_bytes = sum(p.values.nbytes for p in one_step)
    bytes_moved = values_bytes + result_rows * pushed[0].values[0].nbytes
    return race(contenders, point, max(3, rounds // 2), bytes_moved)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    at_50 = [m for m in measurements if m.point["pushes"] == 50]
    verdicts = times_faster(at_50, OURS, STOCK, 12)
    verdicts += times_faster(at_50, OURS, STOCK_SUMMED, 12)
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
