"""The declarations of a benchmark, and its results."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Point = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Axis:
    """One thing that varies.

    `quick`: the values that are measured when only correctness is wanted.
    """

    values: Sequence[Any]
    quick: Sequence[Any] | None = None

    def choose(self, quick: bool) -> Sequence[Any]:
        """The values of a full run, or of a quick one."""
        return self.values if not quick or self.quick is None else self.quick


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The figures of one contender at one point.

    `bytes_moved`: the bytes an update has to read and write, however it is done.
    `copy_bandwidth`: bytes per second, read and written, of a copy of memory in the
    same rounds. `counts`: how often or how much something happens in the time of a
    sample, by its name; None if that is one update. `cpu`: seconds of all threads and
    tasks in that time. `hops`: messages between tasks that
    wait for one another, as `hops.count` counts them: of a worker's step, and of the
    coordinator's update if it makes one. `sent`: how much tasks send each other for a
    gradient, by the unit: "messages", "KiB", "calls".
    """

    contender: str
    point: Point
    unit: str
    samples: Sequence[float]
    bytes_moved: int | None = None
    copy_bandwidth: float | None = None
    cpu: float | None = None
    counts: Mapping[str, float] | None = None
    curves: Mapping[str, Sequence[Any]] | None = None
    hops: Sequence[int] | None = None
    sent: Mapping[str, float] | None = None
    scores: Mapping[str, Sequence[float]] | None = None

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of the samples."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third

    def to_json(self) -> dict[str, Any]:
        """A dictionary for `json.dump`, the summary beside the samples."""
        return {
            "contender": self.contender,
            "point": dict(self.point),
            "unit": self.unit,
            "median": self.median,
            "quartiles": list(self.quartiles),
            "bytes_moved": self.bytes_moved,
            "copy_bandwidth": self.copy_bandwidth,
            **({"cpu": self.cpu} if self.cpu is not None else {}),
            "counts": self.counts and dict(self.counts),
            "samples": list(self.samples),
            **({"curves": dict(self.curves)} if self.curves else {}),
            **({"hops": list(self.hops)} if self.hops else {}),
            **({"sent": dict(self.sent)} if self.sent else {}),
            **({"scores": dict(self.scores)} if self.scores else {}),
        }


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A target and whether it was met."""

    claim: str
    value: float
    met: bool


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One subject.

    `axes`: what varies; a point is one value of each. `measure`: measures all
    contenders at a point; the second argument says how many rounds.
    """

    title: str
    axes: Mapping[str, Axis]
    measure: Callable[[Point, int], Sequence[Measurement]]
    judge: Callable[[Sequence[Measurement]], Sequence[Verdict]]

    def points(self, quick: bool) -> Iterator[dict[str, Any]]:
        """All points, the last axis varying fastest."""
        choices = [axis.choose(quick) for axis in self.axes.values()]
        for values in itertools.product(*choices):
            yield dict(zip(self.axes, values, strict=True))


def times_faster(
    measurements: Sequence[Measurement], ours: str, other: str, reach: float
) -> list[Verdict]:
    """One verdict for each point: `ours` is `reach` times as fast as `other`."""
    return [
        Verdict(
            claim=(
                f"{ours} at least {reach:g} times as fast as {other}{_at(mine.point)}"
            ),
            value=theirs.median / mine.median,
            met=theirs.median / mine.median >= reach,
        )
        for mine, theirs in _pairs(measurements, ours, other)
    ]


def at_most(
    measurements: Sequence[Measurement], ours: str, other: str, reach: float
) -> list[Verdict]:
    """One verdict for each point: `ours` takes at most `reach` times as long."""
    return [
        Verdict(
            claim=f"{ours} within {reach:g} times {other}{_at(mine.point)}",
            value=mine.median / theirs.median,
            met=mine.median / theirs.median <= reach,
        )
        for mine, theirs in _pairs(measurements, ours, other)
    ]


def by_grpc(name: str) -> str:
    """The name of a contender whose tasks talk by gRPC alone."""
    return f"{name}, by gRPC"


def share_of_grpc(
    measurements: Sequence[Measurement], name: str, most: float
) -> list[Verdict]:
    """One verdict for each point: the CPU time of a contender, against that by gRPC."""
    verdicts = []
    for mine, theirs in _pairs(measurements, name, by_grpc(name)):
        share = (mine.cpu or 0) / (theirs.cpu or 0)
        claim = f"at most {most} of gRPC's CPU for {name}{_at(mine.point)}"
        verdicts.append(Verdict(claim, share, share <= most))
    return verdicts


def _pairs(measurements, ours, other):
    """Measurements of the two at the same points; none where one of them is missing."""
    theirs = {str(m.point): m for m in measurements if m.contender == other}
    for mine in measurements:
        if mine.contender == ours and str(mine.point) in theirs:
            yield mine, theirs[str(mine.point)]


def _at(point: Point) -> str:
    text = describe(point)
    return f" ({text})" if text else ""


def describe(point: Point) -> str:
    """A point in words: "rows 1,000,000, distribution uniform"."""
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
        for name, value in point.items()
        if value != ""
    )
