"""What benchmarks on a GPU share: times by CUDA events, beside a copy.

Times are of CUDA events around one step in the default stream, launches included,
contenders taking turns; in each turn the same events time a copy of memory far larger
than the cache.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness import results
from harness.benchmark import Measurement, Point, Verdict, describe

ROUNDS = 30

Step = Callable[[int], Any]
# A part of a benchmark: its measurements, and what was to be reached.
Measure = Callable[[bool], tuple[list[Measurement], list[Verdict]]]


class Copy:
    """A copy of memory that no cache holds."""

    def __init__(self):
        import cupy

        self._from = cupy.ones(256 << 20, np.float32)
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
    """Times the contenders in turns, and a copy in each of them."""
    copy = Copy()
    bandwidths: list[float] = []
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for step in contenders.values():
        for i in range(3):
            step(i)
    for i in range(rounds):
        bandwidths.append(copy.bandwidth())
        for name, step in contenders.items():
            samples[name].append(seconds(step, i))
    bandwidth = float(np.median(bandwidths))
    return [
        Measurement(name, point, "s", times, bytes_moved, bandwidth)
        for name, times in samples.items()
    ]


def has_torch() -> bool:
    """Whether PyTorch is there to compare with."""
    return importlib.util.find_spec("torch") is not None


def release() -> int:
    """Frees what is not used; returns how many bytes are free."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    if has_torch():
        import torch

        torch.cuda.empty_cache()
    return cupy.cuda.runtime.memGetInfo()[0]


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
    """What a reader of the figures has to know."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "torch": importlib.import_module("torch").__version__ if has_torch() else None,
    }


def show(title: str, measurements: list[Measurement], verdicts: list[Verdict]) -> None:
    """Prints a table, ready for a page, and the verdicts."""
    print(f"\n### {title}\n\n| point | contender | median | quartiles | of copy |")
    print("|---|---|---:|---:|---:|")
    for m in measurements:
        assert m.bytes_moved
        assert m.copy_bandwidth
        low, high = (1e3 * quartile for quartile in m.quartiles)
        share = m.bytes_moved / m.median / m.copy_bandwidth
        print(
            f"| {describe(m.point)} | {m.contender} | {1e3 * m.median:.3f} ms "
            f"| {low:.3f} to {high:.3f} | {share:.0%} |"
        )
    print()
    for verdict in verdicts:
        met = "met" if verdict.met else "MISSED"
        print(f"- {met}: {verdict.claim}: {verdict.value:.3g}")


def run(
    title: str,
    name: str,
    folder: pathlib.Path,
    check: Callable[[], None],
    parts: Mapping[str, Measure],
    missing: str | None,
) -> int:
    """Runs a benchmark from its command line.

    Args:
        title: what it is about.
        name: its file's, without suffix.
        folder: where its figures go by default.
        check: holds the kernels to their twin, before any figure is taken.
        parts: by their headings.
        missing: what is not there of what it takes, or None.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=folder / f"{name}.json",
        help="where the figures go",
    )
    arguments = parser.parse_args()
    if missing:
        print(f"Nothing is measured: {missing}")
        return 0
    facts = machine()
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    check()
    all_measurements: list[Measurement] = []
    all_verdicts: list[Verdict] = []
    for heading, measure in parts.items():
        measurements, verdicts = measure(arguments.quick)
        show(heading, measurements, verdicts)
        all_measurements += measurements
        all_verdicts += verdicts
    results.write(
        {
            "title": title,
            "machine": facts,
            "measurements": [m.to_json() for m in all_measurements],
            "verdicts": [
                {"claim": v.claim, "value": v.value, "met": bool(v.met)}
                for v in all_verdicts
            ],
        },
        arguments.out,
    )
    print(f"\nWritten: {arguments.out}")
    return 0
