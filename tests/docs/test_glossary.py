"""The glossary is in order, and explains words that documents link to and code uses."""

import re

import markdown_code
import pytest

GLOSSARY = markdown_code.ROOT / "docs" / "glossary.md"
_ENTRY = re.compile(r"^## (.+)\n\n((?:.+\n)+)", re.MULTILINE)
TERMS = dict(_ENTRY.findall(GLOSSARY.read_text()))
DOCS = GLOSSARY.parent
DESIGN = [DOCS / "design.md", *sorted((DOCS / "design").glob("*.md"))]
# Terms that a page on the design uses in their everyday sense.
EVERYDAY = {
    "clusters.md": {"part"},
    "gate.md": {"part"},
    "keras.md": {"part"},
    "rules.md": {"part", "round", "share"},
}
# Code, comments, headings, pictures, and links to something else than a term.
_NOT_PROSE = re.compile(
    r"^```.*?^```|<!--.*?-->|`[^`]+`|^#[^\n]*"
    r"|!?\[[^\]]*\]\((?![^)]*glossary\.md#)[^)]*\)",
    re.DOTALL | re.MULTILINE,
)
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")


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
def test_a_term_is_explained_in_few_sentences(term):
    text = TERMS[term].strip()
    assert text.endswith(".")
    assert len(re.findall(r"\.(?=\s|$)", text)) <= 3, (
        "Say it in two sentences, or three."
    )


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_linked_from_another_page(term):
    link = re.compile(rf"glossary\.md#{re.escape(term)}\)")
    assert any(link.search(page.read_text()) for page in _other_pages()), (
        f"Link glossary.md#{term} where a page first uses it, or leave it out."
    )


def _unlinked_terms(text: str) -> set[str]:
    """The terms of three uses or more that the paragraph of the first does not link."""
    paragraphs = _PARAGRAPH.split(_NOT_PROSE.sub("", text))
    words = [re.sub(r"\]\([^)]*\)", "]", paragraph) for paragraph in paragraphs]
    unlinked = set()
    for term in TERMS:
        use = re.compile(rf"\b{term}(?:e?s)?\b", re.IGNORECASE)
        uses = [len(use.findall(x)) for x in words]
        if sum(uses) >= 3:
            first = next(x for x, n in zip(paragraphs, uses, strict=True) if n)
            if f"glossary.md#{term})" not in first:
                unlinked.add(term)
    return unlinked


@pytest.mark.parametrize("page", DESIGN, ids=lambda page: page.name)
def test_a_page_on_the_design_links_the_terms_that_it_uses_often(page):
    assert _unlinked_terms(page.read_text()) == EVERYDAY.get(page.name, set()), (
        "Link each term in the first paragraph that uses it, or name it in EVERYDAY if "
        "the page means something else."
    )


def test_terms_are_looked_for_in_prose_and_their_links_in_the_first_paragraph():
    link = "[gate](../glossary.md#gate)"
    others = "`gate` ![gate](gate.svg) [the gate](gate.md) <!-- gate -->\n\n"
    prose = "A gate.\n\n- Two gates."
    assert _unlinked_terms(f"# Gate\n\n{others}{prose}") == set()
    assert _unlinked_terms(f"{prose}\n\nThe {link}.") == {"gate"}
    assert _unlinked_terms(f"- **A gate**, the {link}\n- The gate.") == set()


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
