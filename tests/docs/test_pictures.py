"""Pictures of docs have a ground of their own, and pages say what they show."""

import re
from xml.etree import ElementTree

import markdown_code
import pytest

IMAGES = markdown_code.ROOT / "docs" / "images"
_SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.svg")), ids=lambda x: x.name)
def test_a_drawing_has_a_title_and_a_light_ground_as_large_as_itself(path):
    root = ElementTree.parse(path).getroot()
    assert root.findtext(f"{_SVG}title"), "Say in a <title> what it shows."
    ground = root.find(f"{_SVG}rect")
    assert ground is not None
    assert ground.get("fill") in ("white", "#ffffff"), (
        "Begin with a white rect: on a dark page dark lines would not be seen."
    )
    size = root.get("viewBox", "").split()[2:]
    for side, whole in zip(("width", "height"), size, strict=True):
        assert float(whole) - float(ground.get(side, "0")) <= 1
        assert root.get(side) == whole


def test_each_picture_is_on_a_page_which_says_in_words_what_it_shows():
    shown: dict[str, str] = {}
    for page in markdown_code.pages():
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
            shown[target.rpartition("/")[2]] = words
    there = {path.name for path in IMAGES.iterdir() if path.suffix != ".py"}
    assert there == set(shown)
    assert [name for name, words in shown.items() if len(words.split()) < 5] == []
