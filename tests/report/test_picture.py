"""The picture of a report: what its four panels show."""

import event_logs
import numpy as np
import pytest

from tf_syncrep.python.report import event_files, training

pytest.importorskip("matplotlib", reason="the report draws with matplotlib")

from tf_syncrep.python.report import picture

SECONDS = 10
LOSSES = [1.0 / i for i in range(1, SECONDS + 1)]
CONTRIBUTED = {"worker:0": 4, "worker:1": 2}  # in each second
DROPPED = {"late": 3, "voided": 1}
WAITED = {"worker:0": 0.25, "worker:1": 0.5}


def drawn(tmp_path, start=0):
    """A picture of a training with figures for each second after its start."""
    events = []
    for i, loss in enumerate(LOSSES, start=1):
        counts, waits, drops = (
            {name: i * rate for name, rate in rates.items()}
            for rates in (CONTRIBUTED, WAITED, DROPPED)
        )
        figures = event_logs.sync_figures(3 * i, counts, waits, **drops)
        events.append((1e9 + start + i, {**figures, "loss": loss}))
    path = event_logs.write(tmp_path / "events.out.tfevents.1", events, 1e9)
    found = training.latest([event_files.read(path)], tmp_path)
    assert found is not None
    figure = picture.draw(found[0], "a title", "a line below it")
    figure.draw_without_rendering()
    return figure


@pytest.fixture
def figure(tmp_path):
    return drawn(tmp_path)


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_four_panels_share_the_time_and_are_named(figure):
    labels = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]
    assert labels == [
        "loss",
        "contributions in a second",
        "dropped in a second",
        "time spent waiting, %",
    ]
    assert figure.axes[-1].get_xlabel() == "seconds of training"
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, SECONDS)}
    assert [text.get_text() for text in figure.texts] == ["a title", "a line below it"]


def test_first_panel_has_the_loss_of_each_moment(figure):
    axes = figure.axes[0]
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_xdata(), np.arange(1, SECONDS + 1))
    np.testing.assert_allclose(line.get_ydata(), LOSSES, rtol=1e-6)
    low, high = axes.get_ylim()
    assert low < min(LOSSES) < max(LOSSES) < high
    assert legend(axes) == ["loss\n0.1 at the end"]


def test_picture_begins_with_the_first_update(tmp_path):
    figure = drawn(tmp_path, start=25)
    np.testing.assert_allclose(figure.axes[0].get_xlim(), (25, 25 + SECONDS))
    tops, edges, _ = figure.axes[1].patches[0].get_data()
    assert edges[0] == figure.axes[0].get_xlim()[0]
    np.testing.assert_allclose(tops[1:], CONTRIBUTED["worker:0"])


@pytest.mark.parametrize(
    ("panel", "shown", "names"),
    [
        # They are sorted from the top down, as they are stacked.
        (1, [(0, 4), (4, 6)], ["worker:1: 20, slowest", "worker:0: 40"]),
        (2, [(0, 3), (3, 4)], ["late: 30", "void: 10"]),
        (3, [(None, 25), (None, 50)], ["worker:0: 25 %", "worker:1: 50 %"]),
    ],
    ids=["contributions", "dropped", "share_of_time_waited"],
)
def test_other_panels_have_the_same_in_each_second(figure, panel, shown, names):
    axes = figure.axes[panel]
    assert legend(axes) == names
    for patch, (bottom, top) in zip(axes.patches, shown, strict=True):
        tops, edges, baseline = patch.get_data()
        np.testing.assert_allclose((edges[0], edges[-1]), (0, SECONDS))
        np.testing.assert_allclose(tops, top)
        if bottom is not None:
            np.testing.assert_allclose(baseline, bottom)
        # Nothing of it is cut off.
        low, high = axes.get_ylim()
        assert low <= (bottom or 0) < top <= high
        assert patch.get_visible()
