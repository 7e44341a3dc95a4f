"""The glossary is in order, and explains words that documents link to and code uses."""

import re

import markdown_code
import pytest

GLOSSARY = markdown_code.ROOT / "docs" / "glossary.md"
_ENTRY = re.compile(r"^## (.+)\n\n((?:.+\n)+)", re.MULTILINE)
TERMS = dict(_ENTRY.findall(GLOSSARY.read_text()))


def _other_pages():
    return [page for page in markdown_code.pages() if page != GLOSSARY]


def _files() -> dict[str, str]:
    package = markdown_code.ROOT / "tf_syncrep"
    return {
        str(path.relative_to(package)): path.read_text()
        for pattern in ("*.py", "*.h", "*.cc")
        for path in sorted(package.rglob(pattern))
    }


def _words(text: str) -> set[str]:
    """The words in a text and in the identifiers in it."""
    return set(
        re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text).lower())
    )


def test_each_heading_has_one_paragraph_and_they_are_sorted():
    headings = re.findall(r"^## (.+)$", GLOSSARY.read_text(), re.MULTILINE)
    assert headings == list(TERMS), "Below each heading there is one paragraph."
    assert headings == sorted(headings)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_linked_from_another_page(term):
    link = re.compile(rf"glossary\.md#{re.escape(term)}\)")
    assert any(link.search(page.read_text()) for page in _other_pages()), (
        f"Link glossary.md#{term} where a page first uses it, or leave it out."
    )


def test_terms_are_words_of_the_code_and_names_in_the_glossary_are_there():
    sources = "\n".join(_files().values())
    words = _words(sources)
    assert [x for x in TERMS if not {x, f"{x}s"} & words] == []
    names = re.findall(r"`([^`]+)`", GLOSSARY.read_text())
    missing = [
        name
        for name in names
        if name not in sources
        and not (markdown_code.ROOT / "tf_syncrep" / name).exists()
    ]
    assert missing == [], "The glossary names what the code no longer has."
