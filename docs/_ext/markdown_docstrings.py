"""Lets autodoc read docstrings with Markdown's fences and mathematics.

They are written to be read as they are, too: in an editor, or by `help()`.
"""

from __future__ import annotations

import re
from typing import Any

_DISPLAYED = re.compile(r"(\s*)\$\$(.*)\$\$\s*$")
# Code right before a letter, as in "`Checkpoint`s", which must be parted from it.
_GLUED = re.compile(r"(`[^`]+`)(?=\w)")
_INLINE = re.compile(r"\\\\\((.*?)\\\\\)")


def to_rest(lines: list[str]) -> list[str]:
    r"""Turns a docstring of ours into reStructuredText.

    Args:
        lines: its lines.

    Returns:
        Other lines: fences are code blocks, `$$...$$` in a line of its own and
        `\\(...\\)` are mathematics, "Example:" is a heading.
    """
    result: list[str] = []
    fence: str | None = None  # the indentation of the fence that is open
    in_formula = False
    for line in lines:
        text = line.strip()
        if fence is not None:
            if text == "```":
                fence = None
                result.append("")
            else:
                result.append(f"   {line}" if text else "")
            continue
        formula = _DISPLAYED.match(line)
        if formula:
            if not in_formula:
                result += ["", f"{formula[1]}.. math::"]
            result += ["", f"{formula[1]}   {formula[2]}"]
        elif text.startswith("```"):
            fence = line[: len(line) - len(line.lstrip())]
            result += ["", f"{fence}.. code-block:: {text[3:] or 'text'}", ""]
        elif text == "Example:":
            result += [line.replace(text, ".. rubric:: Example"), ""]
        else:
            if in_formula:
                result.append("")
            if not text.startswith((">>> ", "... ")):
                line = _INLINE.sub(r":math:`\1`", _GLUED.sub(r"\1\ ", line))
            result.append(line)
        in_formula = bool(formula)
    return result


def _process(app, what, name, value, options, lines):
    del app, what, name, value, options
    lines[:] = to_rest(lines)


def setup(app: Any) -> dict[str, Any]:
    """Has Sphinx call `to_rest` before Napoleon parts the docstring into sections."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
