"""The code blocks of Markdown pages."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SCRIPT = re.compile(r"# (\w+\.py): (.*)\n")
_NOT_RUN = "<!-- not run -->\n"


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block.

    `line`: the line of the page where the code begins; the first is 1.
    """

    language: str
    code: str
    line: int
    is_run: bool

    @property
    def script(self) -> tuple[str, str] | None:
        """The file and the command in its first line, if it is a whole script."""
        match = _SCRIPT.match(self.code)
        return (match[1], match[2]) if match else None


def pages() -> list[pathlib.Path]:
    """The pages for users."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: pathlib.Path) -> Iterator[Block]:
    """The blocks of a page, from its top."""
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        before = text[: match.start()]
        yield Block(
            match[1],
            match[2],
            before.count("\n") + 2,
            not before.endswith(_NOT_RUN),
        )


def as_program(parts: Sequence[Block]) -> str:
    """Joins blocks, with each on the lines that it has on its page."""
    lines: list[str] = []
    for block in parts:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.splitlines()
    return "\n".join(lines) + "\n"
