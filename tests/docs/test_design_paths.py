"""Files and folders that the pages on the design name exist."""

import re

import markdown_code
import pytest

DOCS = markdown_code.ROOT / "docs"
PAGES = [DOCS / "design.md", DOCS / "glossary.md", *sorted((DOCS / "design").glob("*"))]
_PATH = re.compile(r"`((?:[\w.*-]+/)+[\w.*-]+|[\w-]+\.py)`")


def _is_there(named: str) -> bool:
    """Whether a path ends so, with or without its extension."""
    folders = [markdown_code.ROOT / x for x in ("tf_syncrep", "tests", "benchmarks")]
    return any(
        any(folder.rglob(pattern))
        for folder in folders
        for pattern in (named, f"{named}.*")
    ) or any(markdown_code.ROOT.glob(named))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_on_a_page_about_the_design_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    missing = [x for x in _PATH.findall(text) if not _is_there(x)]
    assert missing == [], f"{page.name} names files that are gone"
