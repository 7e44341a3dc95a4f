"""The gate alone, with up to 1,024 simulated workers.

A cycle is one worker's acquire, admit and commit. A wake-up is the time from the call
of `advance` to the moment at which the last of the workers is on its way. One thread
that makes all calls shows the gate's own work, in strict and in work-conserving rounds;
a thread for each worker shows what the operating system adds. sync_gate_bench.cc
measures; it fails if the gate counts wrongly.
"""

from __future__ import annotations

import functools
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

from harness.benchmark import Axis, Benchmark, Measurement, Point, Verdict

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = (
    "benchmarks/sync_gate_bench.cc",
    *map(str, sorted(ROOT.glob("tf_syncrep/cc/lib/gate/*.cc"))),
    "tf_syncrep/cc/lib/detached_thread.cc",
    "tf_syncrep/cc/lib/lease_timer.cc",
)
FLAGS = ("-O3", "-DNDEBUG", "-std=c++17", "-pthread")
UPDATES_PER_ROUND = 20


@functools.cache
def _program() -> tuple[pathlib.Path, tempfile.TemporaryDirectory]:
    """The compiled program, and the folder that keeps it while this process runs."""
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "sync_gate_bench"
    subprocess.run(
        ["g++", *FLAGS, f"-I{ROOT}", *SOURCES, "-o", str(path)], check=True, cwd=ROOT
    )
    return path, folder


def measure(point: Point, rounds: int) -> Sequence[Measurement]:
    """Times cycles and wake-ups of some hundred updates."""
    program, _ = _program()
    updates = rounds * UPDATES_PER_ROUND
    result = subprocess.run(
        [str(program), point["driver"], str(point["workers"]), str(updates)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    samples = [tuple(map(float, line.split())) for line in result.stdout.splitlines()]
    cycles, wake_ups = zip(*samples, strict=True)
    return [
        Measurement("one worker's cycle", point, "s", cycles),
        Measurement("advance to last wake-up", point, "s", wake_ups),
    ]


def judge(measurements: Sequence[Measurement]) -> Sequence[Verdict]:
    """Returns no verdicts, since there is nothing to compare with."""
    del measurements
    return []


BENCHMARK = Benchmark(
    title="SyncGate with up to 1,024 simulated workers",
    axes={
        "driver": Axis(["callbacks", "conserving", "threads"]),
        "workers": Axis([64, 256, 512, 1024], quick=[10]),
    },
    measure=measure,
    judge=judge,
)
