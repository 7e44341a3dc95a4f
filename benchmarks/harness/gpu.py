"""What the benchmark on a GPU measures with: times by CUDA events, beside a copy.

Times are those between CUDA events around one step in the default stream, with its
launches. Contenders take turns. Before each turn the same events time a copy of memory
far larger than the cache, which therefore holds nothing of the turn before.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import gc
import importlib.util
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness import results
from harness.benchmark import Measurement, Point, Verdict, describe

ROOT = pathlib.Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "helpers"), str(ROOT / "tests" / "twins")]

import gpu_harness as kernels  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
ROUNDS = 30
_TITLE = "CUDA kernels on a GPU"
# The arrays of a copy have 1 GiB each; the rest is for CUDA and the contenders.
_BESIDE = 3 << 30
_COPY = 1 << 30

Step = Callable[[int], Any]
# A part of the benchmark returns its measurements, and the verdicts on its targets.
Measure = Callable[[bool], tuple[list[Measurement], list[Verdict]]]


class Copy:
    """A copy of memory that no cache holds."""

    def __init__(self):
        import cupy

        self._from = cupy.ones(_COPY // 4, np.float32)
        self._to = cupy.empty_like(self._from)

    def bandwidth(self) -> float:
        """Bytes per second, read and written together."""
        import cupy

        took = seconds(lambda _: cupy.copyto(self._to, self._from), 0)
        return 2 * self._from.nbytes / took


def seconds(step: Step, i: int) -> float:
    """How long the GPU is busy with a step."""
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    step(i)
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(begin, end) / 1e3


def race(
    contenders: dict[str, Step], point: Point, rounds: int, bytes_moved: int
) -> list[Measurement]:
    """Times the contenders in turns, and a copy before each of them."""
    copy = Copy()
    bandwidths: list[float] = []
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for step in contenders.values():
        for i in range(3):
            step(i)
    for i in range(rounds):
        for name, step in contenders.items():
            bandwidths.append(copy.bandwidth())
            samples[name].append(seconds(step, i))
    bandwidth = float(np.median(bandwidths))
    return [
        Measurement(name, point, "s", times, bytes_moved, bandwidth)
        for name, times in samples.items()
    ]


@functools.cache
def has_torch() -> bool:
    """Whether there is a PyTorch with CUDA to compare with."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def has_memory(num_bytes: int, point: Point, contender: str = "") -> bool:
    """Whether a race at a point fits into the GPU's memory; says so if it does not.

    `num_bytes`: how many bytes its contenders take, without the arrays of the copy.
    `contender`: the contender that is left out if the race does not fit; None for all
    of them.
    """
    import cupy

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    if has_torch():
        import torch

        torch.cuda.empty_cache()
    free, _ = cupy.cuda.runtime.memGetInfo()
    wanted = num_bytes + _BESIDE
    if free < wanted:
        who = f", {contender}" if contender else ""
        print(
            f"{describe(point)}{who}: left out; {wanted >> 30} GiB of GPU memory are "
            f"wanted, {free >> 30} are free",
            flush=True,
        )
    return free >= wanted


def share_of_copy(
    measurements: Sequence[Measurement], contender: str, reach: float
) -> Iterator[Verdict]:
    """One verdict for each point: the contender reaches this share of the copy's."""
    for m in measurements:
        if m.contender == contender and m.bytes_moved and m.copy_bandwidth:
            share = m.bytes_moved / m.median / m.copy_bandwidth
            yield Verdict(
                f"at least {reach:.0%} of copy bandwidth ({describe(m.point)})",
                share,
                share >= reach,
            )


def machine() -> dict[str, Any]:
    """The facts that a reader of the figures has to know."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": properties["name"].decode(),
        "memory": f"{properties['totalGlobalMem'] >> 30} GiB",
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "nvcc": _nvcc_release(),
        "cupy": cupy.__version__,
        "torch": importlib.import_module("torch").__version__ if has_torch() else None,
    }


def _nvcc_release() -> str:
    """The version of the nvcc that has built the kernels, such as "13.0"."""
    shown = subprocess.run(
        [kernels.nvcc() or "nvcc", "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return shown.partition("release ")[2].partition(",")[0]


def section(
    title: str, measurements: list[Measurement], verdicts: list[Verdict]
) -> str:
    """A table in Markdown, and the verdicts."""
    lines = [
        f"### {title}",
        "",
        "| point | contender | median | quartiles | copy | of copy |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for m in measurements:
        assert m.bytes_moved
        assert m.copy_bandwidth
        low, high = (1e3 * quartile for quartile in m.quartiles)
        share = m.bytes_moved / m.median / m.copy_bandwidth
        lines.append(
            f"| {describe(m.point)} | {m.contender} | {1e3 * m.median:.3f} ms "
            f"| {low:.3f} to {high:.3f} | {m.copy_bandwidth / 1e9:.0f} GB/s "
            f"| {share:.0%} |"
        )
    lines.append("")
    for verdict in verdicts:
        met = "met" if verdict.met else "MISSED"
        lines.append(f"- {met}: {verdict.claim}: {verdict.value:.3g}")
    return "\n".join(lines) + "\n"


def run(check: Callable[[], None], parts: Mapping[str, Measure]) -> int:
    """Runs the parts, by their headings, from the command line.

    `check` compares the kernels with their twins, before anything is measured. Returns
    the exit status.
    """
    parser = argparse.ArgumentParser(description=_TITLE)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no results")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        help="folder for the results (benchmarks/results/gpu; none with --quick)",
    )
    arguments = parser.parse_args()
    missing = kernels.missing()
    if missing:
        print(f"Nothing is measured: {missing}")
        return 0
    facts = machine()
    page = [f"## {_TITLE}\n", ", ".join(f"{k} {v}" for k, v in facts.items()) + ".\n"]
    print("\n".join(page), flush=True)
    check()
    all_measurements: list[Measurement] = []
    all_verdicts: list[Verdict] = []
    for heading, measure in parts.items():
        measurements, verdicts = measure(arguments.quick)
        page.append(section(heading, measurements, verdicts))
        print(page[-1], flush=True)
        all_measurements += measurements
        all_verdicts += verdicts
    folder = arguments.output or (None if arguments.quick else RESULTS)
    if folder is None:
        return 0
    results.write(
        {
            "title": _TITLE,
            "machine": facts,
            "measurements": [m.to_json() for m in all_measurements],
            "verdicts": [
                {"claim": v.claim, "value": v.value, "met": bool(v.met)}
                for v in all_verdicts
            ],
        },
        folder / "kernels.json",
    )
    (folder / "kernels.md").write_text("\n".join(page))
    print(f"Written: kernels.json and kernels.md in {folder}")
    return 0
