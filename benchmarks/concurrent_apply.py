"""Two to eight threads that apply sparse gradients to one variable at once.

This is what a parameter server sees when many workers push. First the benchmark checks
that no update is lost: all threads push the same gradient into overlapping rows, so
that the slots of a row say how often it was moved, whatever the order, and the powers
say how many calls there were. Then the time is measured; a sample is the time of all
calls divided by their number.
"""

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from harness import adam, machine
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict
from sparse_apply import WIDTH, bytes_moved, make_batches

import tf_syncrep as tfs

CALLS = 24  # of each thread, in a sample


class Table:
    """A variable with its slots and powers."""

    def __init__(self, rows: int, beta1: float, beta2: float, use_locking: bool):
        self.var, self.m, self.v = (tf.Variable(tf.zeros([rows, WIDTH])) for _ in "abc")
        self.powers = [tf.Variable(tf.constant(beta)) for beta in (beta1, beta2)]
        state = (self.var, self.m, self.v, *self.powers)
        rates = (adam.LEARNING_RATE, beta1, beta2, adam.EPSILON)
        # Applies one gradient: values and indices.
        self.apply = functools.partial(
            tfs.ops.resource_sparse_apply_adam_async,
            *(variable.handle for variable in state),
            *map(tf.constant, rates),
            use_locking=use_locking,
        )


def run_in_threads(count: int, work: Callable[[int], None]) -> float:
    """Calls `work` with 0, 1, ... at once; returns the seconds until all are done."""
    barrier = threading.Barrier(count + 1)
    errors = []

    def body(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    barrier.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    if errors:
        raise errors[0]
    return seconds


def check_that_nothing_is_lost(threads: int, use_locking: bool) -> None:
    """Counts the updates of every row and the calls.

    Raises:
        AssertionError: if one is missing.
    """
    rows, calls, beta1, beta2 = 300, 40, 0.97, 0.99
    table = Table(rows, beta1, beta2, use_locking)
    rng = np.random.default_rng(5)
    picked = [
        [rng.permutation(rows)[:200] for _ in range(calls)] for _ in range(threads)
    ]
    ones = tf.ones([200, WIDTH])

    def work(number: int) -> None:
        for indices in picked[number]:
            table.apply(ones, tf.constant(indices))

    run_in_threads(threads, work)
    times = np.bincount(np.concatenate(np.reshape(picked, [-1, 200])), minlength=rows)
    for slot, beta in ((table.m, beta1), (table.v, beta2)):
        expected = np.repeat(1 - beta ** times[:, None], WIDTH, axis=1)
        np.testing.assert_allclose(slot.numpy(), expected, rtol=1e-4)
    for power, beta in zip(table.powers, (beta1, beta2), strict=True):
        expected = beta ** (1 + threads * calls)
        np.testing.assert_allclose(power.numpy(), expected, rtol=1e-3)


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times both ways of locking with one number of threads."""
    threads = point["threads"]
    batches = make_batches(np.random.default_rng(6), point)
    feeds = [
        [tf.constant(array) for array in gradient.arrays] for (gradient,) in batches
    ]
    names = {False: "rows locked (default)", True: "use_locking=True"}
    tables = {}
    for use_locking in names:
        check_that_nothing_is_lost(threads, use_locking)
        tables[use_locking] = Table(point["rows"], adam.BETA1, adam.BETA2, use_locking)
    samples: dict[bool, list[float]] = {use_locking: [] for use_locking in names}
    copier, bandwidths = machine.Copier(), []
    for number_of_round in range(1 + rounds):
        bandwidths.append(copier.bandwidth())
        for use_locking, table in tables.items():

            def work(number: int, table: Table = table) -> None:
                for i in range(CALLS):
                    # Threads take the batches in the same order, but not in step.
                    table.apply(*feeds[(7 * number + i) % len(feeds)])

            seconds = run_in_threads(threads, work)
            if number_of_round:  # The first one warms up.
                samples[use_locking].append(seconds / (threads * CALLS))
    moved, copied = bytes_moved(batches), statistics.median(bandwidths)
    return [
        Measurement(name, point, "s", samples[use_locking], moved, copied)
        for use_locking, name in names.items()
    ]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Checks that many threads get as much done as two."""
    by_threads = {
        m.point["threads"]: m.median
        for m in measurements
        if m.contender.startswith("rows locked")
    }
    return [
        Verdict(
            claim=f"{threads} threads get at least 0.9 times as much done as 2",
            value=by_threads[2] / median,
            met=by_threads[2] / median >= 0.9,
        )
        for threads, median in by_threads.items()
        if threads > 2
    ]


BENCHMARK = Benchmark(
    title="Many threads applying sparse gradients to one variable of 1M x 64 floats",
    axes={
        "rows": Axis([1_000_000], quick=[5_000]),
        "indices": Axis([4096], quick=[64]),
        "distribution": Axis(["zipf(1.2)"]),
        "threads": Axis([1, 2, 4, 8], quick=[2, 3]),
    },
    measure=measure,
    judge=judge,
)
