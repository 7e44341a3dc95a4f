"""Results as pictures."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .figures import Results

_COLOURS = ("tab:blue", "tab:orange")
_OTHERS = "0.7"
_TITLE = {"x": 0.01, "ha": "left", "weight": "bold", "size": "large"}


@dataclasses.dataclass(frozen=True)
class Bars:
    """One panel of horizontal bars."""

    title: str
    unit: str
    values: Mapping[str, float]
    is_ours: Callable[[str], bool]
    is_log: bool = False


def draw_losses(results: Results) -> Any:
    """Draws losses over examples, a panel for each learning rate.

    A line is the median of the runs, and the band goes from the lowest to the highest.
    """
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for measurement in results["sync_staleness"]:
        ((name, value),) = measurement["point"].items()
        panels.setdefault(f"{name} {value:g}", []).append(measurement)
    runs = len(results["sync_staleness"][0]["samples"])
    figure, axes = _panels(
        "Loss after the same examples, by 4 workers and 2 parameter servers\n"
        f"median, lowest and highest of {runs} runs",
        len(panels),
        sharey=True,
    )
    for panel, (title, measurements) in zip(axes, panels.items(), strict=True):
        panel.set_title(title, loc="left", size="medium")
        for measurement, colour in zip(measurements, _COLOURS, strict=True):
            examples = measurement["curves"]["examples"]
            losses = np.array(measurement["curves"]["losses"])
            panel.fill_between(
                examples, losses.min(0), losses.max(0), color=colour, alpha=0.2, lw=0
            )
            panel.plot(
                examples,
                np.median(losses, 0),
                color=colour,
                marker="o",
                markersize=3,
                label=measurement["contender"],
            )
        panel.set_xlabel("examples seen")
        panel.set_xlim(0, None)
        panel.set_ylim(0, None)
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("loss on held-out examples")
    axes[0].legend(frameon=False)
    return figure


def draw_sparse_apply(results: Results) -> Any:
    """Draws how long a gradient for some rows takes, by optimizer."""
    return _draw_bars(
        "A gradient for 4,096 rows of a table of 1M x 64 floats",
        [
            Bars(
                f"rows drawn: {distribution}",
                "ms",
                _values(
                    results["sparse_apply"],
                    {"indices": 4096, "distribution": distribution},
                    lambda m: 1e3 * m["median"],
                ),
                lambda name: name.startswith("tfs."),
                is_log=True,
            )
            for distribution in ("zipf(1.2)", "uniform")
        ],
    )


def draw_embedding_cluster(results: Results) -> Any:
    """Draws how fast a model of many tables is trained, and how much is sent."""
    found, point = results["embedding_cluster"], {"ids": "zipf", "workers": 2}

    def is_ours(name: str) -> bool:
        return name.startswith("DistributedEmbedding")

    return _draw_bars(
        "26 tables of 100,000 x 16 floats, by 2 workers and 2 parameter servers",
        [
            Bars("speed", "examples/s", _values(found, point, _examples), is_ours),
            Bars(
                "sent for a gradient",
                "KiB",
                _values(found, point, lambda m: m.get("sent", {}).get("KiB", 0)),
                is_ours,
                is_log=True,
            ),
        ],
    )


def draw_keras_cluster(results: Results) -> Any:
    """Draws how fast models are trained with synchrony, and without."""
    return _draw_bars(
        "Training by 4 workers and 2 parameter servers",
        [
            Bars(
                model,
                "examples/s",
                _values(
                    results["keras_cluster"],
                    {"model": model, "workers": 4, "PS": 2},
                    _examples,
                ),
                lambda name: name.startswith("tfs."),
            )
            for model in (
                "10M parameters in dense layers",
                "embedding of 500k x 64, 4096 ids",
            )
        ],
    )


def draw_sync(results: Results) -> Any:
    """Draws synchronous training in v1 sessions, and how much a backup worker helps."""

    def updates(measurement: Mapping[str, Any]) -> float:
        return measurement["counts"]["updates"] / measurement["median"]

    def gradients(measurement: Mapping[str, Any]) -> float:
        return measurement["counts"]["gradients"] / measurement["median"]

    def is_ours(name: str) -> bool:
        return "tf_syncrep" in name or (" of 5" in name and "strict" not in name)

    backup = _values(results["sync_backup"], {}, updates)
    panels = [Bars("one of 5 workers is slow", "updates/s", backup, is_ours)]
    for model in ("six layers of 64 x 64", "embedding of 1M x 64, 4096 ids"):
        speeds = _values(results["sync_cluster"], {"model": model}, gradients)
        title = f"v1, {model.partition(',')[0]}"
        panels.append(Bars(title, "gradients/s", speeds, is_ours))
    return _draw_bars("Synchronous training on 2 parameter servers", panels)


def draw_checkpoint(results: Results) -> Any:
    """Draws how a checkpoint slows a training down, by its size."""
    from matplotlib.ticker import LogLocator, NullFormatter  # Only needed here.

    found = [m for m in results["checkpoint"] if m["point"]["max MB/s"] == 0]
    seconds: dict[str, dict[float, float]] = {}
    for m in found:
        seconds.setdefault(m["contender"], {})[m["point"]["GB"]] = m["median"]
    figure, (still, steps) = _panels("Checkpoints while training goes on", 2)
    for label, name, colour in (
        ("tfs.keras.Checkpoint", "longest gap meanwhile", _COLOURS[0]),
        ("tf.train.Checkpoint", "tf.train.Checkpoint, training stopped", _COLOURS[1]),
        ("save_weights of Keras", "Keras' save_weights, training stopped", "0.5"),
    ):
        still.plot(
            list(seconds[name]),
            list(seconds[name].values()),
            color=colour,
            marker="o",
            label=label,
        )
    still.set_title("longest time without an update", loc="left", size="medium")
    still.set_ylabel("s")
    still.set_xlabel("GB")
    still.set_xscale("log")
    still.set_yscale("log")
    still.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    still.yaxis.set_major_formatter("{x:g}")
    still.yaxis.set_minor_formatter(NullFormatter())
    sizes = sorted(seconds["a step meanwhile"])
    still.set_xticks(sizes, [f"{size:g}" for size in sizes], minor=False)
    still.set_xticks([], minor=True)
    still.grid(alpha=0.3)
    still.legend(frameon=False)
    places = np.arange(len(sizes))
    for shift, label, name, colour in (
        (-0.2, "by tfs.keras.Checkpoint", "a step meanwhile", _COLOURS[0]),
        (
            0.2,
            "by plain writes of the same bytes",
            "a step while the bytes are written alone",
            _OTHERS,
        ),
    ):
        shares = [100 * seconds["a step"][size] / seconds[name][size] for size in sizes]
        bars = steps.bar(places + shift, shares, 0.38, color=colour, label=label)
        steps.bar_label(bars, fmt="%.0f%%", padding=2, size="small")
    steps.set_title(
        "steps that are left while it is written", loc="left", size="medium"
    )
    steps.set_xticks(places, [f"{size:g}" for size in sizes])
    steps.set_xlabel("GB")
    steps.set_ylabel("% of steps")
    steps.set_ylim(0, 110)
    steps.legend(frameon=False)
    return figure


def draw_scores(results: Results) -> Any:
    """Draws means and standard deviations of scores, by way of training."""
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for measurement in results["movielens_scores"]:
        panels.setdefault(measurement["point"]["model"], []).append(measurement)
    seeds = len(results["movielens_scores"][0]["samples"])
    figure, axes = _panels(
        f"Scores on MovieLens-100K, mean and standard deviation of {seeds} seeds",
        len(panels),
        height=3,
        most=2,
    )
    for axis, (model, measurements) in zip(axes, panels.items(), strict=True):
        # The last one needs no model, and is far off.
        trained, baseline = measurements[:-1], measurements[-1]
        for place, m in enumerate(trained):
            is_other = m["contender"].startswith(("PyTorch", "TFRA"))
            axis.errorbar(
                statistics.fmean(m["samples"]),
                place,
                xerr=statistics.stdev(m["samples"]),
                fmt="o",
                capsize=4,
                color=_OTHERS if is_other else _COLOURS[0],
            )
        name = next(iter(baseline["scores"]))
        axis.set_xlabel(name + (", less is better" if name == "RMSE" else ""))
        axis.set_title(model.replace(", ", ",\n"), loc="left", size="medium")
        axis.set_yticks(
            range(len(trained)), [m["contender"] for m in trained], size="small"
        )
        axis.set_ylim(len(trained) - 0.5, -0.5)
        axis.margins(x=0.3)
        axis.locator_params(axis="x", nbins=4)
        axis.grid(alpha=0.3, axis="x")
    return figure


def _examples(measurement: Mapping[str, Any]) -> float:
    return measurement["counts"]["examples"] / measurement["median"]


def _values(
    measurements: Sequence[Mapping[str, Any]],
    where: Mapping[str, Any],
    value: Callable[[Mapping[str, Any]], float],
) -> dict[str, float]:
    """A value of each contender at the only point."""
    found = [m for m in measurements if where.items() <= m["point"].items()]
    values = {m["contender"]: value(m) for m in found}
    if len(values) < len(found):
        raise ValueError(f"{dict(where)} are several points of a contender")
    return values


def _draw_bars(title: str, panels: Sequence[Bars]) -> Any:
    """Panels of bars, side by side; names that the last one had are left out."""
    rows = max(len(panel.values) for panel in panels)
    figure, axes = _panels(title, len(panels), height=1.6 + 0.3 * rows)
    shown: list[str] = []
    for axis, panel in zip(axes, panels, strict=True):
        names, values = list(panel.values), list(panel.values.values())
        colours = [_COLOURS[0] if panel.is_ours(name) else _OTHERS for name in names]
        bars = axis.barh(range(len(names)), values, color=colours)
        axis.bar_label(bars, list(map(_label, values)), padding=3, size="small")
        axis.set_title(panel.title, loc="left", size="medium")
        axis.set_xlabel(panel.unit + ", a logarithmic axis" * panel.is_log)
        axis.set_yticks(range(len(names)), names, size="small")
        if names == shown:
            axis.set_yticklabels([])
        shown = names
        axis.invert_yaxis()
        if panel.is_log:
            axis.set_xscale("log")
            lowest = min(value for value in values if value)
            axis.set_xlim(10 ** np.floor(np.log10(lowest)), 6 * max(values))
        else:
            axis.set_xlim(0, 1.25 * max(values))
            axis.locator_params(axis="x", nbins=4)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    return figure


def _label(value: float) -> str:
    """The text at the end of a bar."""
    if not value:
        return "nothing"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _panels(
    title: str, count: int, height: float = 4, most: int = 4, **options: Any
) -> Any:
    """A figure, and its panels in rows of at most so many, each of this height."""
    from matplotlib.figure import Figure  # Only needed here.

    columns, rows = min(count, most), -(-count // most)
    width = 10 + 2 * (columns > 2)
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    figure.suptitle(title, **_TITLE)
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for axis in axes[count:]:
        axis.remove()
    axes = axes[:count]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
