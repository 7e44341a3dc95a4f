"""The cost of the protocol grpc+tfs alone, without TensorFlow.

Two processes ask and answer, one request after the other: by the wire, and by TCP on
blocking sockets with nothing on it. A sample is the processor time of both processes
for a request of 120 bytes and its answer, of 120 bytes or of as many as a point says.
wire_bench.cc does that, and fails if a byte is wrong.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from harness import native
from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict, at_most

SOURCES = (
    "benchmarks/wire_bench.cc",
    "tf_syncrep/cc/lib/detached_thread.cc",
    *map(str, sorted(native.ROOT.glob("tf_syncrep/cc/lib/wire/*.cc"))),
)
WIRE, TCP = "grpc+tfs", "TCP"
_SMALL_CALLS = 5000
_LARGE_CALLS = 30
_MOST_OF_A_SMALL_CALL_SECS = 25e-6


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Lets both answer in turns."""
    program, _ = native.program(*SOURCES)
    numbers = [0, _LARGE_CALLS, point["bytes"]]
    if not point["bytes"]:
        numbers = [_SMALL_CALLS, 0, 1]
    size = "large" if point["bytes"] else "small"
    samples: dict[str, list[float]] = {"wire": [], "tcp": []}
    for _ in range(rounds):
        result = subprocess.run(
            [str(program), *map(str, numbers)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, (cpu_secs, _secs) in json.loads(result.stdout)[size].items():
            samples[name].append(cpu_secs)
    return [
        Measurement(name, point, "s", samples[key])
        for name, key in ((WIRE, "wire"), (TCP, "tcp"))
    ]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Compares with the targets, for a small call and for a large one."""
    small = [x for x in measurements if not x.point["bytes"]]
    large = [x for x in measurements if x.point["bytes"]]
    return [
        *(
            Verdict(
                "A small request and its answer take at most 25 us on both ends",
                x.median * 1e6,
                x.median <= _MOST_OF_A_SMALL_CALL_SECS,
            )
            for x in small
            if x.contender == WIRE
        ),
        *at_most(large, WIRE, TCP, 1.15),
    ]


BENCHMARK = Benchmark(
    title="Requests and answers of the wire",
    axes={"bytes": Axis([0, 16 << 20], quick=[0, 1 << 20])},
    measure=measure,
    judge=judge,
)
