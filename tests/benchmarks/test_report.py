"""The page of results is written from the results, and only from them."""

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


def test_the_page_shows_the_results_that_are_kept(report):
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert page == report.with_results(page, ROOT / "benchmarks" / "results")


def test_a_result_becomes_tables_and_targets(report, tmp_path):
    results = importlib.import_module("harness.results")
    results.write(RESULT, tmp_path / "speed.json")
    page = report.with_results(
        f"before\n{report.BEGIN}\nold\n{report.END}\nafter", tmp_path
    )
    assert page.startswith(f"before\n{report.BEGIN}\n\n### `speed`\n\nA title.\n")
    assert page.endswith(f"{report.END}\nafter")
    assert "old" not in page
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


def test_a_page_without_the_marks_is_refused(report, tmp_path):
    with pytest.raises(ValueError, match="the page must have the lines"):
        report.with_results("nothing here", tmp_path)
