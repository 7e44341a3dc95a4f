"""A synchronous training in words."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tf_syncrep.python.base.sizes import largest, mebibytes
from tf_syncrep.python.report.training import DROPS, Training

# A rate that differs by less is the quotient of updates and time, to a reader.
_ALIKE = 0.01


def headline(training: Training) -> str:
    """Returns one line: how many updates, with how many gradients, in what time.

    If the figures are sums of several sessions, as all figures of a report are, it says
    so, and if the rate is not the quotient of the other two numbers, why.
    """
    updates, seconds = training.total("updates"), training.seconds
    rate = training.updates_per_second
    is_quotient = abs(rate * seconds - updates) <= _ALIKE * updates
    without = "" if is_quotient else " without start and pauses"
    quorum = f"{training.quorum} of " if training.quorum else ""
    count = len(training.workers)
    sessions = len(training.restarts) + 1
    sums = f"; sums of {sessions} sessions" if sessions > 1 else ""
    return (
        f"{updates:,.0f} updates in {seconds:,.0f} s, "
        f"{rate:.3g} updates/s{without}; "
        f"quorum {quorum}{count} worker{'s' if count != 1 else ''}{sums}"
    )


def details(training: Training) -> str:
    """Returns one line: gradients that were dropped, and the slowest worker."""
    committed = training.total("applied") + training.dropped
    kinds = ", ".join(
        f"{training.total(counter):,.0f} {name}"
        for counter, name in DROPS.items()
        if training.total(counter)
    )
    dropped = f"{training.dropped:,.0f} of {committed:,.0f} gradients dropped"
    if kinds:
        dropped += f" ({kinds})"
    slowest = training.slowest
    if slowest is None:
        return dropped
    return (
        f"{dropped}; slowest worker: {slowest.name}, "
        f"{training.seconds_of_work(slowest):.3g} s of work for a gradient"
    )


def table(training: Training) -> str:
    """Returns a line per worker; "held up" is how much later it has made rounds end."""
    lines = [("worker", "contributed", "dropped", "waited", "held up", "")]
    for worker in training.workers.values():
        waited = worker.total("waited_secs")
        lines.append(
            (
                worker.name,
                f"{worker.total('contributed'):,.0f}",
                f"{worker.dropped:,.0f}",
                f"{waited:,.1f} s ({100 * training.waited_share(worker):.0f} %)",
                f"{worker.total('held_up_secs'):,.1f} s",
                "" if worker.live else "gone",
            )
        )
    return _aligned(lines, (0, 5))


def tables(training: Training) -> str:
    """Returns one line for each table that grows."""
    counters = {
        "ids without row": "without_row",
        "admitted": "admitted",
        "evicted": "evicted",
        "refused": "refused",
    }
    lines = [("table", "rows in use", *counters, "memory")]
    for name, figures in training.tables.items():
        rows, capacity = figures["rows"], figures["capacity"]
        lines.append(
            (
                name,
                f"{rows:,.0f} of {capacity:,.0f} ({100 * rows / capacity:.0f} %)",
                *(f"{figures[x]:,.0f}" for x in counters.values()),
                mebibytes(figures["bytes"]),
            )
        )
    return _aligned(lines, (0,))


def placement(training: Training) -> str:
    """Returns one line for each parameter server: its bytes, and its variables."""
    lines = [("server", "variables", "bytes", "largest")]
    for server, sizes in training.placement.items():
        size = mebibytes(sum(sizes.values()))
        lines.append((server, str(len(sizes)), size, largest(sizes)))
    return _aligned(lines, (0, 3))


def _aligned(lines: Sequence[tuple[str, ...]], left: Container[int]) -> str:
    """Columns, of which some are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
