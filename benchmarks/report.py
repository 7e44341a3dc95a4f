"""Writes figures of the results in benchmarks/results into the docs; draws pictures.

python benchmarks/report.py            rewrites figures in prose, and pictures
python benchmarks/report.py --check    status 1 if they are not those of the results

Figures in the README and in the pages of docs are marked as `harness/figures.py` says.
The tables of all results are part of the site, which takes them from here.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from harness import figures, pictures, results, tables

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
IMAGES = ROOT / "docs" / "images"

# Each picture, and the results that it is drawn from.
PICTURES: dict[str, tuple[Callable[[figures.Results], Any], tuple[str, ...]]] = {
    "sparse_apply": (pictures.draw_sparse_apply, ("sparse_apply",)),
    "embedding_cluster": (pictures.draw_embedding_cluster, ("embedding_cluster",)),
    "keras_cluster": (pictures.draw_keras_cluster, ("keras_cluster",)),
    "sync": (pictures.draw_sync, ("sync_backup", "sync_cluster")),
    "sync_staleness": (pictures.draw_losses, ("sync_staleness",)),
    "checkpoint": (pictures.draw_checkpoint, ("checkpoint",)),
    "scores": (pictures.draw_scores, ("movielens_scores",)),
}


def sections(folder: pathlib.Path) -> str:
    """The tables of all results in a folder, in Markdown."""
    paths = sorted(folder.glob("*.json"))
    return "\n".join(section(path.stem, results.read(path)) for path in paths)


def section(name: str, result: dict[str, Any]) -> str:
    """One result in Markdown."""
    return "\n".join([f"### `{name}`", "", *_lines(result)]) + "\n"


def out_of_date(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    """The pages that differ from the results in a folder, and their new text.

    Raises ValueError: if a page names a figure that does not exist.
    """
    measurements = _measurements(folder)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        old = page.read_text()
        new = figures.with_figures(old, measurements)
        if new != old:
            yield page, new


def pictures_out_of_date(folder: pathlib.Path) -> Iterator[str]:
    """The pictures that were drawn from other results, by name."""
    for name, (_, sources) in PICTURES.items():
        path = IMAGES / f"{name}.png"
        if not path.exists() or _digest(folder, sources).encode() not in (
            path.read_bytes()
        ):
            yield name


def draw(name: str, folder: pathlib.Path) -> None:
    """Draws a picture; its file names the results from which it was drawn."""
    drawer, sources = PICTURES[name]
    drawer(_measurements(folder)).savefig(
        IMAGES / f"{name}.png",
        dpi=100,
        metadata={"Source": _digest(folder, sources)},
    )


def _measurements(folder: pathlib.Path) -> figures.Results:
    return {
        path.stem: results.read(path)["measurements"] for path in folder.glob("*.json")
    }


def _digest(folder: pathlib.Path, names: tuple[str, ...]) -> str:
    contents = b"".join((folder / f"{name}.json").read_bytes() for name in names)
    return hashlib.sha256(contents).hexdigest()


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"{result['title']}."
    yield ""
    yield tables.machine_line(result["machine"]) + "."
    if "kept" in result:
        others = ", ".join(dict.fromkeys(x["contender"] for x in result["kept"]))
        yield f"Kept from an earlier run ({result['kept_of']['date']}): {others}."
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
    folder = HERE / "results"
    old_pages = list(out_of_date(folder))
    old_pictures = list(pictures_out_of_date(folder))
    if options.check:
        for stale in [*(page for page, _ in old_pages), *old_pictures]:
            print(f"{stale} is out of date: python benchmarks/report.py writes it anew")
        return int(bool(old_pages or old_pictures))
    for page, text in old_pages:
        page.write_text(text)
    for name in PICTURES:
        draw(name, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
