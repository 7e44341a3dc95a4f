"""What pages say of results is written from the results, and only from them."""

import importlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]

RESULT = {
    "title": "A title",
    "machine": {
        "date": "2020-01-31",
        "cpu": "Some CPU",
        "cores": 2,
        "avx512": False,
        "memory_gib": 8,
        "python": "3.10.0",
        "tensorflow": "2.21.0",
    },
    "measurements": [
        {
            "contender": name,
            "point": {"rows": 1_000_000},
            "unit": "s",
            "median": median,
            "quartiles": [0.9 * median, 1.1 * median],
            "bytes_moved": 10_000_000,
            "copy_bandwidth": 20e9,
        }
        for name, median in (("ours", 1e-3), ("theirs", 0.25))
    ],
    "verdicts": [
        {"claim": "ours faster", "value": 250.0, "met": True},
        {"claim": "ours leaner", "value": 0.5, "met": False},
    ],
}


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("report")


RESULTS = ROOT / "benchmarks" / "results"
REMEDY = "python benchmarks/report.py writes them anew"


def test_pages_say_what_the_results_say_that_are_kept(report):
    stale = [page.name for page, _ in report.out_of_date(RESULTS)]
    assert stale == [], REMEDY


def test_pictures_are_drawn_from_the_results_that_are_kept(report):
    assert list(report.pictures_out_of_date(RESULTS)) == [], REMEDY


def test_each_picture_is_drawn(report, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="pictures are drawn by matplotlib")
    monkeypatch.setattr(report, "IMAGES", tmp_path)
    for name in report.PICTURES:
        report.draw(name, RESULTS)
    assert list(report.pictures_out_of_date(RESULTS)) == []


def test_figures_in_prose_are_those_of_the_results(report):
    figures = importlib.import_module("harness.figures")
    results = {
        "sparse_apply": [
            {
                "contender": contender,
                "point": {"distribution": distribution},
                "median": median,
                "counts": None,
            }
            for distribution, ours, theirs in (("a", 1e-3, 0.25), ("b", 2e-3, 0.0212))
            for contender, median in (
                ("tfs.keras.AdamAsync", ours),
                ("Keras 3 Adam", theirs),
            )
        ]
    }
    page = "?<!--figure:adam/ms--> ms, 7 to 1,900<!--figure:adam/keras-->x"
    assert figures.names_in(page) == ["adam/ms", "adam/keras"]
    assert figures.with_figures(page, results) == (
        "1.0 to 2.0<!--figure:adam/ms--> ms, 11 to 250<!--figure:adam/keras-->x"
    )
    with pytest.raises(ValueError, match="there is no figure 'adam/none'"):
        figures.with_figures("1<!--figure:adam/none-->", results)
    with pytest.raises(ValueError, match="sparse_apply has no 'tf_keras Adam'"):
        figures.with_figures("1<!--figure:adam/tf_keras-->", results)


def test_no_figure_is_without_a_page(report):
    figures = importlib.import_module("harness.figures")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = [page.read_text() for page in pages]
    used = [name for text in texts for name in figures.names_in(text)]
    assert set(used) == set(figures.FIGURES)
    # The page has no figure that a result does not have.
    assert len(used) == sum(text.count("<!--figure:") for text in texts)


def test_a_result_becomes_tables_and_targets(report, tmp_path):
    results = importlib.import_module("harness.results")
    results.write(RESULT, tmp_path / "speed.json")
    page = report.sections(tmp_path)
    assert page.startswith("### `speed`\n\nA title.\n")
    for line in (
        "Some CPU, 2 cores, no AVX-512, 8 GiB; TensorFlow 2.21.0, Python 3.10.0; "
        "2020-01-31.",
        "**rows 1,000,000; copies 20.0 GB/s**",
        "| ours | 1 | 0.9 to 1.1 | 1.00 | 10.00 | 50.0% |",
        "| theirs | 250 | 225 to 275 | 250.00 | 0.04 | 0.2% |",
        "- met: ours faster: 250",
        "- MISSED: ours leaner: 0.5",
    ):
        assert f"\n{line}\n" in page


def test_what_others_measured_once_stays_when_a_benchmark_runs_again(report, tmp_path):
    results, path = report.results, tmp_path / "speed.json"
    (ours, theirs), machine = RESULT["measurements"], RESULT["machine"]
    once = {"kept": [theirs], "kept_of": machine, "measurements": [ours]}
    results.write({**RESULT, **once}, path)
    again = {**ours, "median": 2e-3}
    results.write({**RESULT, "measurements": [again]}, path)
    medians = [m["median"] for m in results.read(path)["measurements"]]
    assert medians == [2e-3, theirs["median"]]
    assert "\nKept from an earlier run (2020-01-31): theirs.\n" in (
        report.sections(tmp_path)
    )


def test_losses_become_a_table_and_a_picture(report, tmp_path):
    pytest.importorskip("matplotlib", reason="the picture is drawn by matplotlib")
    measurements = [
        report.results.Measurement(
            name,
            {"learning rate": rate},
            "loss",
            [last, 3 * last, 2 * last],
            curves={
                "examples": [0, 1000],
                "losses": [[1.0, last], [1.0, 3 * last], [1.0, 2 * last]],
            },
        ).to_json()
        for rate in (1.0, 8.0)
        for name, last in (("ours", 0.125), ("theirs", 0.25))
    ]
    section = report.section("losses", {**RESULT, "measurements": measurements})
    for line in (
        "**learning rate 8.0**",
        "|  | median loss after 1,000 examples | lowest to highest |",
        "| theirs | 0.5 | 0.25 to 0.75 |",
    ):
        assert f"\n{line}\n" in section
    left, right = report.pictures.draw_losses({"sync_staleness": measurements}).axes
    titles = [panel.get_title(loc="left") for panel in (left, right)]
    assert titles == ["learning rate 1", "learning rate 8"]
    assert [list(line.get_ydata()) for line in left.lines] == [[1, 0.25], [1, 0.5]]
    assert left.get_ylim()[0] == right.get_ylim()[0] == 0


def test_scores_become_means_with_standard_deviations_and_a_picture(report):
    pytest.importorskip("matplotlib", reason="the picture is drawn by matplotlib")
    measurements = [
        report.results.Measurement(
            name,
            {"model": "a model"},
            "score",
            scores["HR@10"],
            counts={"epochs": 8},
            scores=scores,
        ).to_json()
        for name, scores in (
            ("one process", {"HR@10": [0.7, 0.8], "seconds": [20.0, 22.0]}),
            ("the most popular", {"HR@10": [0.4, 0.4]}),
        )
    ]
    section = report.section("scores", {**RESULT, "measurements": measurements})
    for line in (
        "**model a model; 8 epochs, 2 seeds**",
        "|  | HR@10 | seconds |",
        "| one process | 0.7500 ± 0.0707 | 21 ± 1 |",
        "| the most popular | 0.4000 ± 0.0000 |  |",
    ):
        assert f"\n{line}\n" in section
    (panel,) = report.pictures.draw_scores({"movielens_scores": measurements}).axes
    assert panel.get_title(loc="left") == "a model"
    ((line, *_),) = panel.containers
    assert list(line.get_xdata()) == [pytest.approx(0.75)]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["one process"]


def test_hops_are_a_column(report):
    latency = {**RESULT["measurements"][0], "bytes_moved": None, "median": 2e-3}
    measurements = [{**latency, "hops": [9, 10]}, {**latency, "contender": "other"}]
    section = report.section("latency", {**RESULT, "measurements": measurements})
    assert "\n| ours | 2 | 0.9 to 1.1 | 9 + 10 |\n" in section
    assert "\n| other | 2 | 0.9 to 1.1 |  |\n" in section
