"""Puts the results that are kept in benchmarks/results into docs/benchmarks.md.

python benchmarks/report.py            rewrites the page's tables, draws the pictures
python benchmarks/report.py --check    status 1 if they are not those of the results
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from harness import pictures, results, tables

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
BEGIN = "<!-- Written by benchmarks/report.py from here on. -->"
IMAGES = HERE.parent / "docs" / "images"
PICTURES = {"sync_staleness": pictures.draw_losses}
END = "<!-- Written by benchmarks/report.py up to here. -->"


def with_results(page: str, folder: pathlib.Path) -> str:
    """The text of the page with the tables of all results in a folder.

    Raises:
        ValueError: if the page has no place for them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page must have the lines {BEGIN!r} and {END!r}")
    sections = [
        section(path.stem, results.read(path)) for path in sorted(folder.glob("*.json"))
    ]
    body = "\n".join(sections) or "No results are kept.\n"
    return f"{before}{begin}\n\n{body}\n{end}{after}"


def section(name: str, result: dict[str, Any]) -> str:
    """One result in Markdown."""
    return "\n".join([f"### `{name}`", "", *_lines(result)]) + "\n"


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"{result['title']}."
    yield ""
    yield tables.machine_line(result["machine"]) + "."
    for table in tables.tables(result):
        yield from ("", f"**{table.heading}**", "")
        yield _row(table.columns)
        yield _row(["---"] + ["--:"] * (len(table.columns) - 1))
        for cells in table.rows:
            yield _row(cells)
    yield ""
    for verdict in result["verdicts"]:
        yield f"- {tables.verdict_line(verdict)}"


def _row(cells) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Reads the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    old = PAGE.read_text()
    new = with_results(old, HERE / "results")
    if options.check:
        if new != old:
            print(f"{PAGE} is out of date: python benchmarks/report.py mends it")
        return int(new != old)
    PAGE.write_text(new)
    for name, draw in PICTURES.items():
        path = HERE / "results" / f"{name}.json"
        if path.exists():
            figure = draw(results.read(path))
            figure.savefig(IMAGES / f"{name}.png", dpi=100)
    return 0


if __name__ == "__main__":
    sys.exit(main())
