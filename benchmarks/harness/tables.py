"""Results as tables, for the terminal and for a page."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from .benchmark import describe


@dataclasses.dataclass(frozen=True)
class Table:
    """One table of text.

    `columns`: their names; all but the first are figures.
    """

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """One table for each point of a result, with contenders in the order they ran."""
    by_point: dict[str, list[dict[str, Any]]] = {}
    for measurement in result["measurements"]:
        by_point.setdefault(describe(measurement["point"]), []).append(measurement)
    for heading, measurements in by_point.items():
        if measurements[0]["unit"] == "loss":
            yield _losses(heading, measurements)
        elif measurements[0]["unit"] == "score":
            yield _scores(heading, measurements)
        elif measurements[0]["unit"] != "s":
            yield _sizes(heading, measurements)
        elif measurements[0].get("counts"):
            yield _rates(heading, measurements)
        elif measurements[0]["bytes_moved"] is None:
            yield _latencies(heading, measurements)
        else:
            yield _times(heading, measurements)


def machine_line(machine: dict[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, "
        f"{'AVX-512' if machine['avx512'] else 'no AVX-512'}, "
        f"{machine['memory_gib']} GiB; TensorFlow {machine['tensorflow']}, "
        f"Python {machine['python']}; {machine['date']}"
    )


def verdict_line(verdict: dict[str, Any]) -> str:
    """A verdict in one line."""
    return (
        f"{'met' if verdict['met'] else 'MISSED'}: {verdict['claim']}: "
        f"{verdict['value']:.3g}"
    )


def _times(heading, measurements) -> Table:
    first = measurements[0]["median"]
    copy_bandwidth = measurements[0]["copy_bandwidth"]
    rows = []
    for m in measurements:
        low, high = m["quartiles"]
        rate = m["bytes_moved"] / m["median"]
        rows.append(
            (
                m["contender"],
                _milliseconds(m["median"]),
                f"{_milliseconds(low)} to {_milliseconds(high)}",
                f"{m['median'] / first:.2f}",
                f"{rate / 1e9:.2f}",
                f"{rate / copy_bandwidth:.1%}",
                *([_milliseconds(m["cpu"])] if "cpu" in m else []),
            )
        )
    heading += f"; copies {copy_bandwidth / 1e9:.1f} GB/s"
    columns = ["", "median ms", "quartiles ms", "relative", "GB/s", "of copy"]
    columns += ["CPU ms"] if "cpu" in measurements[0] else []
    return Table(heading, columns, rows)


def _latencies(heading, measurements) -> Table:
    """A table of times that do not depend on memory, and little on one another."""
    are_long = max(m["median"] for m in measurements) >= 1e-3
    unit, show = ("ms", _milliseconds) if are_long else ("us", _microseconds)
    columns = ["", f"median {unit}", f"quartiles {unit}"]
    rows = _medians(measurements, "quartiles", show)
    if any("hops" in m for m in measurements):
        columns.append("hops")
        for row, m in zip(rows, measurements, strict=True):
            row.append(" + ".join(map(str, m.get("hops", []))))
    return Table(heading, columns, rows)


def _rates(heading, measurements) -> Table:
    """A table of how often things happen in a second."""
    counts = list(measurements[0]["counts"])
    sent = list(measurements[0].get("sent", {}))
    rows = []
    for m in measurements:
        low, high = m["quartiles"]
        rows.append(
            (
                m["contender"],
                *(f"{m['counts'][what] / m['median']:.3g}" for what in counts),
                _milliseconds(m["median"]),
                f"{_milliseconds(low)} to {_milliseconds(high)}",
                *([_milliseconds(m["cpu"])] if "cpu" in m else []),
                *(f"{m['sent'][unit]:.3g}" if "sent" in m else "" for unit in sent),
            )
        )
    columns = ("", *(f"{what}/s" for what in counts), "median ms", "quartiles ms")
    columns += ("CPU ms",) if "cpu" in measurements[0] else ()
    columns += tuple(f"{unit} a gradient" for unit in sent)
    return Table(heading, columns, rows)


def _sizes(heading, measurements) -> Table:
    rows = _medians(measurements, "quartiles", _mebibytes)
    return Table(heading, ("", "median MiB", "quartiles MiB"), rows)


def _losses(heading, measurements) -> Table:
    rows = _medians(measurements, "samples", "{:.3g}".format)
    examples = measurements[0]["curves"]["examples"][-1]
    columns = ("", f"median loss after {examples:,} examples", "lowest to highest")
    return Table(heading, columns, rows)


def _scores(heading, measurements) -> Table:
    """Means and standard deviations, of as many trainings as there are samples."""
    columns = list(measurements[0]["scores"])
    rows = [
        [m["contender"], *(mean_and_spread(m["scores"].get(c, ())) for c in columns)]
        for m in measurements
    ]
    runs = len(measurements[0]["samples"])
    epochs = measurements[0]["counts"]["epochs"]
    return Table(f"{heading}; {epochs} epochs, {runs} seeds", ["", *columns], rows)


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean of some values and their standard deviation, or nothing."""
    if not values:
        return ""
    mean = statistics.fmean(values)
    digits = 0 if mean >= 10 else 4
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def _medians(measurements, spread, show) -> list[list[str]]:
    """Rows with the contender, the median, and both ends of the `spread`."""
    return [
        [
            m["contender"],
            show(m["median"]),
            f"{show(min(m[spread]))} to {show(max(m[spread]))}",
        ]
        for m in measurements
    ]


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:.1f}"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}"


def _milliseconds(seconds: float) -> str:
    """Three significant digits."""
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
