"""Dense gradients into an accumulator, out again, and into Adam.

A step is four pushes of 100 MB and a synchronous update with their mean. The
gradients are made by ops of the graph, as a backward pass makes them or as they come
from another task, so that nobody else holds them when they are pushed. Making them is
part of the step and the same for all; it is timed by itself too. The memory is the
peak of the resident memory in the first three steps of a process, less what was
resident before.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from harness import adam, machine
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    at_most,
    times_faster,
)
from harness.timing import Contender, race

import tf_syncrep as tfs

OURS = "tf_syncrep's accumulator and AdamAsync"
STOCK = "TensorFlow's accumulator and Adam"
GRADIENTS_ALONE = "the gradients alone"
PUSHES = 4
STEP = 1 << 40

_ACCUMULATORS = {
    OURS: tfs.train.ConditionalAccumulator,
    STOCK: tf.compat.v1.ConditionalAccumulator,
}
_OPTIMIZERS = {
    OURS: tfs.train.AdamAsyncOptimizer,
    STOCK: tf.compat.v1.train.AdamOptimizer,
}


@dataclasses.dataclass
class _Training:
    """One contender, and a function that takes the mean of a step's gradients."""

    contender: Contender
    mean: Callable[[], np.ndarray | None]


def _make(name: str, point: Point) -> _Training:
    size = point["floats"]
    with tf.Graph().as_default() as graph:
        seed = tf.compat.v1.placeholder(tf.float32, [])
        # A few numbers, spread: a gradient is written, and nothing else is read.
        gradient = tf.reshape(tf.tile(seed + tf.range(64.0), [size // 64]), [size])
        variable = tf.compat.v1.Variable(tf.zeros([size]), use_resource=True)
        if name == GRADIENTS_ALONE:
            push_op, update_op = gradient.op, tf.no_op()
        else:
            accumulator = _ACCUMULATORS[name](tf.float32, [size])
            push_op = accumulator.apply_grad(gradient, local_step=STEP)
            taken = accumulator.take_grad(PUSHES)
            optimizer = _OPTIMIZERS[name](
                adam.LEARNING_RATE, adam.BETA1, adam.BETA2, adam.EPSILON
            )
            update_op = optimizer.apply_gradients([(taken, variable)])
        initialize = tf.compat.v1.global_variables_initializer()
    session = tf.compat.v1.Session(graph=graph)
    session.run(initialize)
    push = session.make_callable(push_op, feed_list=[seed])
    update = session.make_callable(update_op)

    def step(i: int) -> None:
        del i
        for k in range(PUSHES):
            push(np.float32(k))
        update()

    contender = Contender(name, step, lambda: [session.run(variable)])
    if name == GRADIENTS_ALONE:
        return _Training(contender, lambda: None)

    def mean() -> np.ndarray:
        for k in range(PUSHES):
            push(np.float32(k))
        return session.run(taken)

    return _Training(contender, mean)


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times all, or looks at their memory."""
    if point["figure"] == "memory":
        return [_memory(name, point) for name in (OURS, STOCK)]
    contenders = []
    for name in (OURS, STOCK, GRADIENTS_ALONE):
        training = _make(name, point)
        _check_mean(training, point)
        training.contender.step(0)
        contenders.append(training.contender)
    # To push: a gradient and the sum read, the sum written; then Adam's seven.
    bytes_moved = 4 * point["floats"] * (3 * PUSHES + 2 + 7)
    return race(contenders, point, rounds, bytes_moved)


def _memory(name: str, point: Point) -> Measurement:
    """Measures in a process of its own: TensorFlow keeps freed memory for later."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_memory, args=(name, point, sender))
    process.start()
    sender.close()
    try:
        return Measurement(name, point, "B", [receiver.recv()])
    except EOFError:
        raise AssertionError("the process above has failed") from None
    finally:
        process.join()


def _send_memory(name: str, point: Point, sender) -> None:
    contender = _make(name, point).contender
    before = machine.reset_peak()
    for i in range(3):
        contender.step(i)
    used = machine.peak_resident_bytes() - before
    # All moments are of one sign: three full steps.
    moved = contender.read()[0][1:]
    np.testing.assert_allclose(moved, -3 * adam.LEARNING_RATE, rtol=1e-2)
    sender.send(used)


def _check_mean(training: _Training, point: Point) -> None:
    mean = training.mean()
    if mean is not None:
        expected = np.resize(np.arange(64) + (PUSHES - 1) / 2, point["floats"])
        np.testing.assert_allclose(mean, expected, rtol=1e-6)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Holds the figures to the targets."""
    times = [m for m in measurements if m.unit == "s"]
    memory = [m for m in measurements if m.unit == "B"]
    return [
        *times_faster(times, OURS, STOCK, 1.5),
        *at_most(memory, OURS, STOCK, 1.0),
    ]


BENCHMARK = Benchmark(
    title="Dense accumulator: four pushes of 100 MB, a take and Adam",
    axes={
        "floats": Axis([25_000_000], quick=[6_400]),
        "figure": Axis(["time", "memory"]),
    },
    measure=measure,
    judge=judge,
)
