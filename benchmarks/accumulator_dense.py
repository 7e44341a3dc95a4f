"""Dense gradients into an accumulator, out again, and into Adam.

A step is four pushes of 100 MB and a synchronous update with their mean. The gradients
were made before, and are in a staging area that gives them away. So nobody else holds
them when they are pushed, as it is with gradients that a backward pass makes or that
come from another task. The memory is the peak of the resident memory in the first three
steps of a process, less what was resident before; there each gradient is made when it
is pushed.
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


@dataclasses.dataclass(frozen=True)
class _Training:
    """One contender's session.

    Attributes:
        stage: makes a gradient of a few numbers, the smallest of which is its argument.
        push: hands the gradient that was staged first in.
        update: takes the mean of all and applies it.
        mean: takes the mean and returns it.
        read: returns the variable.
    """

    stage: Callable[[float], None]
    push: Callable[[], None]
    update: Callable[[], None]
    mean: Callable[[], np.ndarray]
    read: Callable[[], np.ndarray]

    def contender(self, name: str) -> Contender:
        """Makes a step of the staged gradients."""

        def stage(i: int) -> None:
            del i
            for k in range(PUSHES):
                self.stage(k)

        def step(i: int) -> None:
            del i
            for _ in range(PUSHES):
                self.push()
            self.update()

        return Contender(name, step, lambda: [self.read()], prepare=stage)


def _make(name: str, point: Point) -> _Training:
    size = point["floats"]
    with tf.Graph().as_default() as graph:
        smallest = tf.compat.v1.placeholder(tf.float32, [])
        made = tf.reshape(tf.tile(smallest + tf.range(64.0), [size // 64]), [size])
        stage_op = tf.raw_ops.Stage(values=[made], shared_name="gradients")
        (staged,) = tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name="gradients")
        gradient = tf.ensure_shape(staged, [size])
        variable = tf.compat.v1.Variable(tf.zeros([size]), use_resource=True)
        accumulator = _ACCUMULATORS[name](tf.float32, [size])
        push_op = accumulator.apply_grad(gradient, local_step=STEP)
        taken = accumulator.take_grad(PUSHES)
        optimizer = _OPTIMIZERS[name](
            adam.LEARNING_RATE, adam.BETA1, adam.BETA2, adam.EPSILON
        )
        update_op = optimizer.apply_gradients([(taken, variable)])
        value = variable.read_value()
        initialize = tf.compat.v1.global_variables_initializer()
    session = tf.compat.v1.Session(graph=graph)
    session.run(initialize)
    return _Training(
        session.make_callable(stage_op, feed_list=[smallest]),
        session.make_callable(push_op),
        session.make_callable(update_op),
        session.make_callable(taken),
        session.make_callable(value),
    )


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times all contenders, or measures their memory."""
    if point["figure"] == "memory":
        return [_memory(name, point) for name in (OURS, STOCK)]
    contenders = []
    for name in (OURS, STOCK):
        training = _make(name, point)
        _check_mean(training, point)
        contenders.append(training.contender(name))
        contenders[-1].prepare(0)
        contenders[-1].step(0)
    # A push reads a gradient and the sum, and writes the sum; Adam moves seven arrays.
    bytes_moved = 4 * point["floats"] * (3 * PUSHES + 2 + 7)
    return race(contenders, point, rounds, bytes_moved)


def _memory(name: str, point: Point) -> Measurement:
    """Measures in a process of its own, since TensorFlow keeps freed memory."""
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
    training = _make(name, point)
    before = machine.reset_peak()
    for _ in range(3):
        for k in range(PUSHES):
            training.stage(k)
            training.push()
        training.update()
    used = machine.peak_resident_bytes() - before
    # All moments have one sign, so that there are three full steps.
    moved = training.read()[1:]
    np.testing.assert_allclose(moved, -3 * adam.LEARNING_RATE, rtol=1e-2)
    sender.send(used)


def _check_mean(training: _Training, point: Point) -> None:
    for k in range(PUSHES):
        training.stage(k)
        training.push()
    expected = np.resize(np.arange(64) + (PUSHES - 1) / 2, point["floats"])
    np.testing.assert_allclose(training.mean(), expected, rtol=1e-6)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares the figures with the targets."""
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
