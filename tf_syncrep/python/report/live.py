"""Shows a running training in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tf_syncrep.python.report import command

if TYPE_CHECKING:
    from tf_syncrep.python.report.training import Curve, Training

_LEVELS = "▁▂▃▄▅▆▇█"
_CHART_COLUMNS = 60
_REFRESH_SECS = 2.0
# Reading the files of a long training takes a while: at most this share of the time.
_READING_SHARE = 0.1


def watch(logdir: str, wait: Callable[[float], object] = time.sleep) -> None:
    """Shows the latest training in a folder, updated until Ctrl-C."""
    command.check_folder(logdir)
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        raise command.ReportError(
            "rich, which draws in the terminal, is not installed. Install it: "
            f"{sys.executable} -m pip install rich"
        ) from None
    console = Console()
    if not console.is_terminal:
        raise command.ReportError("--live needs a terminal as its standard output")
    with Live(console=console, auto_refresh=False) as screen:
        try:
            while True:
                begin = time.monotonic()
                screen.update(Text(_shown(logdir)), refresh=True)
                secs = time.monotonic() - begin
                wait(max(_REFRESH_SECS, secs / _READING_SHARE))
        except KeyboardInterrupt:
            pass


def _shown(logdir: str) -> str:
    try:
        found, _ = command.read(logdir)
    except command.NothingYetError as error:
        return f"Waiting: {error}"
    # It imports TensorFlow, which has been imported silently by now.
    from tf_syncrep.python.report import summary

    lines = [f"Synchronous training in {found.folder}:", summary.headline(found)]
    lines += [summary.details(found), "", chart(found), "", summary.table(found)]
    if found.tables:
        lines += ["", summary.tables(found)]
    return "\n".join([*lines, "", "Ctrl-C ends this, not the training."])


def chart(training: Training) -> str:
    """Draws lines for each loss, for updates per second and for dropped gradients.

    Time goes from left to right. Each line has its first and its last value, and blocks
    whose heights lie between its smallest and its largest value.
    """
    from tf_syncrep.python.report.training import DROPS

    grid = np.linspace(training.begin, training.seconds, _CHART_COLUMNS + 1)
    rows = [(name, _inside(curve, grid[1:])) for name, curve in training.losses.items()]
    secs = max(float(grid[1] - grid[0]), 1e-9)
    rows.append(("updates/s", _gained(training, ["updates"], grid) / secs))
    if training.dropped:
        drops = [name for name in DROPS if name in training.counters]
        rows.append(("dropped/s", _gained(training, drops, grid) / secs))
    texts = [(name, *_ends(values), _blocks(values)) for name, values in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}  {first:>{widths[1]}} {blocks} {last}"
        for name, first, last, blocks in texts
    )


def _inside(curve: Curve, grid: np.ndarray) -> np.ndarray:
    """Returns the values at these times; NaN before the first value."""
    return np.where(grid >= curve.seconds[0], curve.at(grid), np.nan)


def _gained(training: Training, counters: list[str], grid: np.ndarray) -> np.ndarray:
    """Returns the increase of counters between these times."""
    sums = [training.counters[name].at(grid) for name in counters]
    return np.diff(np.sum(sums, axis=0))


def _ends(values: np.ndarray) -> tuple[str, str]:
    known = values[np.isfinite(values)]
    return (f"{known[0]:.3g}", f"{known[-1]:.3g}") if known.size else ("", "")


def _blocks(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    if not known.size:
        return " " * len(values)
    span = float(np.ptp(known))
    if span <= 1e-6 * np.abs(known).max():  # differences by rounding are no change
        span = np.inf
    heights = (values - known.min()) / span * (len(_LEVELS) - 1)
    return "".join(
        _LEVELS[round(float(height))] if np.isfinite(height) else " "
        for height in heights
    )
