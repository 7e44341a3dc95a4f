"""The tables of all benchmarks' results, behind the page that explains them."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

_BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


def setup(app: Any) -> dict[str, bool]:
    """Registers with Sphinx."""
    sys.path.append(str(_BENCHMARKS))
    import report

    def add(app: Any, page: str, source: list[str]) -> None:
        if page == "benchmarks_all":
            source[0] += report.sections(_BENCHMARKS / "results")

    app.connect("source-read", add)
    return {"parallel_read_safe": True}
