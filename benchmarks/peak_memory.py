"""Peak memory: what an apply needs beyond variables, slots and gradients.

The figure is the peak of the process' resident memory during an apply (VmHWM, reset
before it) less what was resident before. Another apply has gone before, as the first
one finds slots that still share the memory of their initial values, and copies them.
Each sample comes from a process of its own.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from harness import adam, contenders, gradients, machine
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict
from sparse_apply import WIDTH, make_table

ALLOWED_MIB = 4
_POOL_LIMIT = 100  # TensorFlow's.
OURS = (
    contenders.RAW_OP,
    contenders.KERAS_ADAM_ASYNC,
    contenders.V1_ADAM_ASYNC,
)


def _makers() -> dict[str, Callable[..., contenders.Contender]]:
    """What makes each contender."""
    return {
        contenders.RAW_OP: contenders.raw_op,
        contenders.KERAS_ADAM_ASYNC: contenders.keras_adam_async,
        contenders.V1_ADAM_ASYNC: contenders.v1_adam_async,
        contenders.V1_ADAM: contenders.v1_adam,
        **{
            name: functools.partial(contenders.stock_keras_adam, name)
            for name in contenders.installed_kerases()
        },
    }


def _inputs(point: Point) -> tuple[np.ndarray, list[list[gradients.Gradient]]]:
    """The variable and one batch."""
    rng = np.random.default_rng(7)
    table = make_table(rng, point["rows"])
    if point["gradient"] == "dense":
        return table, [[gradients.dense(rng, table.shape)]]
    rows = rng.permutation(len(table))[: min(4096, len(table) // 2)]
    return table, [[gradients.sparse(rng, rows, WIDTH)]]


def _second_apply(make: Callable[..., contenders.Contender], point: Point, sender):
    """Sends the bytes that an apply needs."""
    table, batches = _inputs(point)
    contender = make([table], batches)
    adam.check(contender, [table], batches, steps=1)
    held = _hold_pooled_memory(table.shape)
    before = machine.reset_peak()
    contender.step(1)
    peak = machine.peak_resident_bytes()
    del held
    sender.send(max(0, peak - before))


def _hold_pooled_memory(shape: tuple[int, ...]) -> list[tf.Tensor]:
    """Takes all memory for tensors of a shape that TensorFlow has in stock.

    It keeps what was freed for the next tensor of the same size. An apply would find
    such memory there, resident already, and seem to need none.
    """
    held = []
    grown = 0
    while grown < 4 * np.prod(shape) / 2 and len(held) < _POOL_LIMIT:
        before = machine.reset_peak()
        held.append(tf.fill(shape, 1.0))
        grown = machine.peak_resident_bytes() - before
    return held


def _in_a_process(make: Callable[..., contenders.Contender], point: Point) -> int:
    # This process has imported TensorFlow and never run an op, so it may be forked.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_second_apply, args=(make, point, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise AssertionError("the process above has failed") from None
    finally:
        process.join()


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Measures each contender by itself."""
    samples: dict[str, list[float]] = {name: [] for name in _makers()}
    for _ in range(max(1, rounds // 5)):
        for name, make in _makers().items():
            samples[name].append(_in_a_process(make, point))
    return [Measurement(name, point, "B", samples[name]) for name in samples]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """The memory of ours does not grow with the table."""
    medians = {
        (m.contender, m.point["gradient"], m.point["rows"]): m.median / 2**20
        for m in measurements
    }
    lengths = [m.point["rows"] for m in measurements]
    short, long = min(lengths), max(lengths)
    verdicts = []
    for gradient in dict.fromkeys(m.point["gradient"] for m in measurements):
        for name in OURS:
            grown = medians[name, gradient, long] - medians[name, gradient, short]
            claim = (
                f"{name}, {gradient}: {long:,} rows take at most {ALLOWED_MIB} MiB "
                f"more than {short:,}"
            )
            verdicts.append(Verdict(claim, grown, grown <= ALLOWED_MIB))
    return verdicts


BENCHMARK = Benchmark(
    title="Peak memory of an apply on tables with rows of 64 floats",
    axes={
        "gradient": Axis(["sparse", "dense"]),
        "rows": Axis([100_000, 1_000_000], quick=[1_000, 5_000]),
    },
    measure=measure,
    judge=judge,
)
