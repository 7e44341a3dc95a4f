"""Many small variables: what an optimizer costs beside its arithmetic.

All gradients are constants of the graph, so that what is timed is one step of the
optimizer: in Keras a `tf.function`, in v1 a `Session.run`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from harness import adam, contenders, gradients
from harness.benchmark import (
    Axis,
    Benchmark,
    Measurement,
    Point,
    Verdict,
    times_faster,
)
from harness.timing import race

# Stock Adam in the Keras that a process has.
STOCK = {"Keras 3": contenders.KERAS_3_ADAM, "Keras 2": contenders.TF_KERAS_ADAM}


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times all contenders in the Keras that this process has."""
    rng = np.random.default_rng(4)
    shape = (point["floats"],)
    variables = [
        gradients.aligned(rng.uniform(-0.05, 0.05, shape).astype(np.float32))
        for _ in range(point["variables"])
    ]
    batches = [[gradients.dense(rng, shape) for _ in variables]]
    entries = [
        contenders.keras_adam_async(variables, batches, in_graph=True),
        contenders.v1_adam_async(variables, batches, in_graph=True),
        contenders.stock_keras_adam(
            STOCK[point["tf.keras"]], variables, batches, in_graph=True
        ),
        contenders.v1_adam(variables, batches, in_graph=True),
    ]
    for contender in entries:
        adam.check(contender, variables, batches)
    total = point["variables"] * point["floats"]
    return race(entries, point, 2 * rounds, bytes_moved=7 * 4 * total)


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Each of ours is not slower than stock Adam of the same kind."""
    ours, v1 = contenders.KERAS_ADAM_ASYNC, contenders.V1_ADAM_ASYNC
    pairs = [(ours, stock) for stock in STOCK.values()] + [(v1, contenders.V1_ADAM)]
    return [
        verdict
        for mine, stock in pairs
        for verdict in times_faster(measurements, mine, stock, 1.0)
    ]


BENCHMARK = Benchmark(
    title="Many small variables: 500 of 1,000 floats, one step of the optimizer",
    axes={
        "variables": Axis([500], quick=[3]),
        "floats": Axis([1_000], quick=[7]),
    },
    measure=measure,
    judge=judge,
)
