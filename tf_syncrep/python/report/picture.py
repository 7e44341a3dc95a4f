"""Draws a synchronous training."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tf_syncrep.python.report.training import DROPS, Curve, Training

_MAX_BINS = 60
# How many names fit beside the smaller of the two panels that have them.
_NAMED_WORKERS = 9
_DROP_COLOURS = ("tab:orange", "tab:red", "tab:purple", "tab:brown")
_LOSS_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red")
# A loss with more points than this is drawn with the mean of each bin on top.
_NOISY_POINTS = 2 * _MAX_BINS


def draw(training: Training, title: str, subtitle: str) -> Figure:
    """Draws loss, contributions, drops and waits over the time of training."""
    figure = Figure(figsize=(10, 9))
    # The margins are fixed: those that Matplotlib would choose depend on the legends.
    rows = figure.subplots(
        4,
        sharex=True,
        height_ratios=[3, 2.5, 1.5, 2],
        gridspec_kw={"left": 0.09, "right": 0.78, "bottom": 0.06, "top": 0.89},
    )
    figure.text(0.02, 0.975, title, weight="bold", size="large", va="center")
    figure.text(0.02, 0.93, subtitle, va="center", linespacing=1.4)
    edges = _bin_edges(training)
    colours = _worker_colours(training)
    _draw_losses(rows[0], training, edges)
    _draw_contributions(rows[1], training, edges, colours)
    _draw_drops(rows[2], training, edges)
    _draw_waits(rows[3], training, edges, colours)
    for row in rows:
        row.grid(alpha=0.3)
        row.set_axisbelow(True)
        row.spines[["top", "right"]].set_visible(False)
        if row.get_legend_handles_labels()[0]:
            row.legend(
                loc="upper left",
                bbox_to_anchor=(1, 1),
                frameon=False,
                fontsize="small",
                reverse=row is rows[1],  # in the order in which the areas are stacked
            )
        # This is left of the longest number; a single line has more room than two.
        row.yaxis.set_label_coords(-0.085 if row is rows[0] else -0.055, 0.5)
        for restart in training.restarts:
            row.axvline(restart, color="black", linewidth=1, linestyle="--")
    for restart in training.restarts:
        _note(rows[0], "restarted", (restart, 1), (4, -4), va="top")
    rows[-1].set_xlim(edges[0], edges[-1])
    rows[-1].set_xlabel("seconds of training")
    return figure


def _draw_losses(axes: Axes, training: Training, edges: np.ndarray) -> None:
    axes.set_ylabel("loss")
    if not training.losses:
        _note(axes, "no loss in the event files", (0.5, 0.5), ha="center")
        axes.set_yticks([])
    shown = []
    for (name, curve), colour in zip(
        training.losses.items(), _LOSS_COLOURS, strict=False
    ):
        label = f"{name}\n{curve.last:.4g} at the end"
        if len(curve.values) > _NOISY_POINTS:
            axes.plot(*_points(curve), color=colour, alpha=0.25, linewidth=0.8)
            curve = _bin_means(curve, edges)
            label = f"{name}\n{curve.last:.4g} at the end (mean)"
        marker = "o" if len(curve.values) < 30 else None
        axes.plot(
            *_points(curve), color=colour, linewidth=2, marker=marker, markersize=4,
            label=label,
        )  # fmt: skip
        shown.append(curve.values)
    if shown:
        # The first batches of a training may be so far off that they would flatten the
        # rest.
        values = np.concatenate(shown)
        low, high = values.min(), values.max()
        typical = np.quantile(values, 0.95)
        if high - low > 5 * (typical - low) > 0:
            axes.set_ylim(low - 0.1 * (typical - low), typical + 0.5 * (typical - low))


def _draw_contributions(axes: Axes, training: Training, edges, colours) -> None:
    axes.set_ylabel("contributions\nin a second")
    rates = {
        name: _rates(worker.counters["contributed"], edges)
        for name, worker in training.workers.items()
        if "contributed" in worker.counters
    }
    for name, bottom, rate in zip(
        rates,
        np.cumsum([np.zeros(len(edges) - 1), *rates.values()], axis=0),
        rates.values(),
        strict=False,
    ):
        axes.stairs(
            bottom + rate, edges, baseline=bottom, fill=True, alpha=0.8,
            color=colours[name], label=_worker_label(training, name),
        )  # fmt: skip
    axes.set_ylim(bottom=0)


def _draw_drops(axes: Axes, training: Training, edges) -> None:
    axes.set_ylabel("dropped\nin a second")
    bottom = np.zeros(len(edges) - 1)
    for (counter, name), colour in zip(DROPS.items(), _DROP_COLOURS, strict=True):
        if total := training.total(counter):
            rate = _rates(training.counters[counter], edges)
            axes.stairs(
                bottom + rate, edges, baseline=bottom, fill=True, color=colour,
                label=f"{name}: {total:,.0f}",
            )  # fmt: skip
            bottom = bottom + rate
    if not bottom.any():
        _note(axes, "no gradient was dropped", (0.5, 0.5), ha="center")
        axes.set_yticks([])
    axes.set_ylim(bottom=0)
    if "expired" in training.counters:
        expired = training.counters["expired"]
        when = expired.seconds[1:][np.diff(expired.values) > 0]
        label = f"leases expired: {expired.last:.0f}" if len(when) else None
        axes.plot(when, np.zeros(len(when)), "kx", clip_on=False, label=label)


def _draw_waits(axes: Axes, training: Training, edges, colours) -> None:
    axes.set_ylabel("time spent\nwaiting, %")
    for name, worker in training.workers.items():
        if "waited_secs" in worker.counters:
            share = 100 * _rates(worker.counters["waited_secs"], edges)
            total = 100 * training.waited_share(worker)
            label = f"{name}: {total:.0f} %" if name in _named(training) else None
            axes.stairs(
                share, edges, baseline=None, color=colours[name], linewidth=1.5,
                label=label,
            )  # fmt: skip
    if hidden := len(training.workers) - len(_named(training)):
        axes.plot([], [], " ", label=f"... and {hidden} more")
    axes.set_ylim(0, max(100, axes.get_ylim()[1]))


def _bin_edges(training: Training) -> np.ndarray:
    """Cuts the time of updates into equal parts, no finer than figures' intervals."""
    points = len(training.counters["updates"].seconds) - 1
    end = max(training.seconds, training.begin + 1e-3)
    return np.linspace(training.begin, end, min(max(points, 1), _MAX_BINS) + 1)


def _rates(counter: Curve, edges: np.ndarray) -> np.ndarray:
    return np.diff(counter.at(edges)) / np.diff(edges)


def _bin_means(curve: Curve, edges: np.ndarray) -> Curve:
    bins = np.clip(np.searchsorted(edges, curve.seconds, side="right"), 1, len(edges))
    used = np.unique(bins)
    return Curve(
        np.array([curve.seconds[bins == x].mean() for x in used]),
        np.array([curve.values[bins == x].mean() for x in used]),
    )


def _worker_colours(training: Training) -> dict[str, tuple]:
    count = len(training.workers)
    if count <= 10:
        return dict(zip(training.workers, colormaps["tab10"].colors, strict=False))
    shades = colormaps["viridis"](np.linspace(0, 0.95, count))
    return dict(zip(training.workers, shades, strict=True))


def _named(training: Training) -> set[str]:
    """Returns the workers to name: all of them, or the first ones and the slowest."""
    names = list(training.workers)
    if len(names) > _NAMED_WORKERS and training.slowest is not None:
        names = [training.slowest.name, *names[: _NAMED_WORKERS - 2]]
    return set(names)


def _worker_label(training: Training, name: str) -> str | None:
    worker = training.workers[name]
    if name not in _named(training):
        return None
    slowest = training.slowest is worker
    note = ", slowest" if slowest else "" if worker.live else ", gone"
    return f"{name}: {worker.total('contributed'):,.0f}{note}"


def _points(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    return curve.seconds, curve.values


def _note(axes: Axes, text: str, place, offset=(0, 0), **options) -> None:
    axes.annotate(
        text, place, offset, textcoords="offset points", fontsize="small",
        xycoords="axes fraction" if place[0] == 0.5 else ("data", "axes fraction"),
        color="dimgray", **options,
    )  # fmt: skip
