"""Times contenders against one another, in rounds."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from .benchmark import Measurement, Point
from .machine import Copier

# A turn is as many calls as fit into this time, at least one.
_TURN_SECS = 0.03
_MAX_CALLS_IN_A_TURN = 20
# In this time the threads of the contender before come to rest.
_PAUSE_SECS = 0.005


@dataclasses.dataclass(frozen=True)
class Contender:
    """Something that makes one update after the other.

    `prepare`: what is done before each step, out of the time; nothing by default.
    """

    name: str
    step: Callable[[int], object]
    read: Callable[[], Sequence[np.ndarray]]
    prepare: Callable[[int], None] = lambda _: None


def race(
    contenders: Sequence[Contender],
    point: Point,
    rounds: int,
    bytes_moved: int | None = None,
    with_cpu: bool = False,
) -> list[Measurement]:
    """Measures the seconds of a step of each contender.

    Each round gives each contender a turn, and another one is first each time, so that
    all suffer alike from whatever else the machine does. Each round also measures once
    how fast memory is copied. No two calls of a contender get the same batch until all
    batches have been used.

    `bytes_moved`: the bytes of one step, for the record.
    """
    samples: dict[str, list[float]] = {c.name: [] for c in contenders}
    cpu: dict[str, list[float]] = {c.name: [] for c in contenders}
    batch = dict.fromkeys(samples, 0)
    copier = Copier()
    bandwidths = []
    gc_was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            bandwidths.append(copier.bandwidth())
            first = number % len(contenders)
            for contender in [*contenders[first:], *contenders[:first]]:
                time.sleep(_PAUSE_SECS)
                turn_end = time.perf_counter() + _TURN_SECS
                for _ in range(_MAX_CALLS_IN_A_TURN):
                    contender.prepare(batch[contender.name])
                    begin_cpu, begin = time.process_time(), time.perf_counter()
                    contender.step(batch[contender.name])
                    end, end_cpu = time.perf_counter(), time.process_time()
                    cpu[contender.name].append(end_cpu - begin_cpu)
                    samples[contender.name].append(end - begin)
                    batch[contender.name] += 1
                    if end >= turn_end:
                        break
    finally:
        if gc_was_enabled:
            gc.enable()
    copied = statistics.median(bandwidths)
    return [
        Measurement(
            *(c.name, point, "s", samples[c.name], bytes_moved, copied),
            cpu=statistics.median(cpu[c.name]) if with_cpu else None,
        )
        for c in contenders
    ]
