"""Results as pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

_COLOURS = ("tab:blue", "tab:orange")


def draw_losses(result: dict[str, Any]) -> Any:
    """Draws losses over examples, a panel for each point of a result.

    A line is the median of the runs, and the band goes from the lowest to the highest.

    Args:
        result: as `results.read` returns it, of measurements with `curves`.

    Returns:
        The `matplotlib.figure.Figure`.
    """
    from matplotlib.figure import Figure  # Only needed here.

    panels: dict[str, list[dict[str, Any]]] = {}
    for measurement in result["measurements"]:
        ((name, value),) = measurement["point"].items()
        panels.setdefault(f"{name} {value:g}", []).append(measurement)
    figure = Figure(figsize=(10, 4), layout="constrained")
    runs = len(result["measurements"][0]["samples"])
    title = f"{result['title']}\nmedian, lowest and highest of {runs} runs"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size="large")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
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
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("loss on held-out examples")
    axes[0].legend(frameon=False)
    return figure
