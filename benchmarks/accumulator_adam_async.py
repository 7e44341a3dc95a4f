"""An update of AdamAsync with what a dense accumulator holds: by one op, or by two.

A step is the update alone. The gradients were pushed before, off the clock; each is
made when it is pushed, and nobody else holds it, like those of a backward pass. One
contender takes their mean and applies it, which writes it to memory and reads it again;
the other is the op that does both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from harness import adam
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict, at_most
from harness.timing import Contender, race

import tf_syncrep as tfs

FUSED = "take and apply in one op"
TWO_OPS = "take, then apply"


def _make(name: str, point: Point) -> Contender:
    size, pushes = point["floats"], point["pushes"]
    with tf.Graph().as_default() as graph:
        smallest = tf.compat.v1.placeholder(tf.float32, [])
        round_number = tf.compat.v1.placeholder(tf.int64, [])
        made = tf.reshape(tf.tile(smallest + tf.range(64.0), [size // 64]), [size])
        handle = tfs.ops.dense_accumulator(
            tf.float32, [size], mode="ROUND", shared_name="gradients"
        )
        push_op = tfs.ops.accumulator_apply_dense(handle, round_number, made)
        variables = [
            tf.compat.v1.Variable(value, use_resource=True)
            for value in (*[tf.zeros([size])] * 3, adam.BETA1, adam.BETA2)
        ]
        rates = (adam.LEARNING_RATE, adam.BETA1, adam.BETA2, adam.EPSILON)
        if name == FUSED:
            update_op = tfs.ops.accumulator_take_round_apply_adam_async_dense(
                *variables, *rates, handle, round_number, pushes, tf.float32
            )
        else:
            taken = tfs.ops.accumulator_take_round_dense(
                handle, round_number, pushes, tf.float32
            )
            update_op = tfs.ops.resource_apply_adam_async(*variables, *rates, taken)
        values = [variable.read_value() for variable in variables]
        initialize = tf.compat.v1.global_variables_initializer()
    session = tf.compat.v1.Session(graph=graph)
    session.run(initialize)
    push = session.make_callable(push_op, feed_list=[smallest, round_number])
    update = session.make_callable(update_op, feed_list=[round_number])
    prepared, stepped = itertools.count(), itertools.count()

    def prepare(i: int) -> None:
        del i
        number = next(prepared)
        for k in range(pushes):
            assert push(float(k - number), number)

    def step(i: int) -> None:
        del i
        update(next(stepped))

    return Contender(name, step, lambda: session.run(values), prepare)


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times both, after two steps of each have given the same bits."""
    contenders = [_make(name, point) for name in (FUSED, TWO_OPS)]
    for i in range(2):
        for contender in contenders:
            contender.prepare(i)
            contender.step(i)
    for one, two in zip(*[contender.read() for contender in contenders], strict=True):
        np.testing.assert_array_equal(one, two)
    # The sum and the last gradient are read, and three arrays of Adam are read and
    # written.
    bytes_moved = 4 * point["floats"] * (2 + 6)
    # 50 pushes take a hundred times as long as the update.
    rounds = rounds if point["pushes"] < 50 else max(5, rounds // 3)
    return race(contenders, point, rounds, bytes_moved)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Holds the figures to the target."""
    return at_most(measurements, FUSED, TWO_OPS, 0.8)


BENCHMARK = Benchmark(
    title="Accumulator and AdamAsync: the update with 1M x 64 floats",
    axes={
        "floats": Axis([64_000_000], quick=[6_400]),
        "pushes": Axis([8, 50], quick=[3]),
    },
    measure=measure,
    judge=judge,
)
