"""Dense gradients of several replicas that reach one accumulator at once.

This is what a parameter server sees when replicas end their steps together. A step
consists of the pushes of all, by a thread each, and the take of their mean. Gradients
were made before, and are in a staging area that gives them away. So nobody else holds
them when they are pushed, as it is with gradients that come from another task. Each
mean is checked: each gradient is in it once.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
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
STEP = 1 << 40
PERIOD = 64  # of the numbers in a gradient

_ACCUMULATORS = {
    OURS: tfs.train.ConditionalAccumulator,
    STOCK: tf.compat.v1.ConditionalAccumulator,
}


def _make(name: str, point: Point, pool: concurrent.futures.Executor) -> Contender:
    size, pushers = point["floats"], point["pushers"]
    with tf.Graph().as_default() as graph:
        number = tf.compat.v1.placeholder(tf.float32, [])
        # No two sets of gradients have the same sum.
        made = tf.reshape(
            tf.tile(tf.pow(2.0, number) + tf.range(float(PERIOD)), [size // PERIOD]),
            [size],
        )
        stage_op = tf.raw_ops.Stage(values=[made], shared_name="gradients")
        (staged,) = tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name="gradients")
        accumulator = _ACCUMULATORS[name](tf.float32, [size])
        push_op = accumulator.apply_grad(tf.ensure_shape(staged, [size]), STEP)
        mean = tf.reshape(accumulator.take_grad(pushers), [-1, PERIOD])
        # Numbers at the beginning, in the middle and at the end are read; the rest
        # stays where it is.
        seen_op = tf.gather(mean, [0, size // PERIOD // 2, size // PERIOD - 1])
    # There are as many threads as pushes, so that slow ones do not wait for a thread.
    session = tf.compat.v1.Session(
        graph=graph,
        config=tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=pushers, use_per_session_threads=True
        ),
    )
    stage = session.make_callable(stage_op, feed_list=[number])
    push = session.make_callable(push_op)
    take = session.make_callable(seen_op)
    expected = np.tile(np.arange(PERIOD) + (2.0**pushers - 1) / pushers, [3, 1])
    means: list[np.ndarray] = []

    def prepare(i: int) -> None:
        del i
        check()
        for k in range(pushers):
            stage(k)

    def step(i: int) -> None:
        del i
        for pushed in [pool.submit(push) for _ in range(pushers)]:
            pushed.result()
        means.append(take())

    def check() -> list[np.ndarray]:
        while means:
            np.testing.assert_allclose(means.pop(), expected, rtol=1e-6)
        return []

    return Contender(name, step, check, prepare)


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times both with one number of replicas."""
    pushers = point["pushers"]
    with concurrent.futures.ThreadPoolExecutor(pushers) as pool:
        contenders = [_make(name, point, pool) for name in (OURS, STOCK)]
        for contender in contenders:
            contender.prepare(0)
            contender.step(0)
        # Each gradient is read, and one sum is written, read and written again as the
        # mean.
        bytes_moved = 4 * point["floats"] * (pushers + 3)
        measurements = race(contenders, point, rounds, bytes_moved)
        for contender in contenders:
            contender.read()
    return measurements


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
    return times_faster(measurements, OURS, STOCK, 1.5)


BENCHMARK = Benchmark(
    title="Dense accumulator: pushes of 25 MB by several replicas at once, and a take",
    axes={
        "floats": Axis([6_400_000], quick=[6_400]),
        "pushers": Axis([2, 4, 8], quick=[4]),
    },
    measure=measure,
    judge=judge,
)
