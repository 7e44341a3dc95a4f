"""Formulas as MathML, which browsers show without a script.

The site is then complete in itself: nothing is fetched from elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml import converter
from sphinx.util import logging

_log = logging.getLogger(__name__)


def _mathml(text: str, display: str, node: nodes.Node) -> str:
    try:
        # Two signs would stand apart, and the one for both is taken for a name.
        formula = converter.convert(text.replace(":=", "\u2254"), display=display)
        return re.sub(r"<mi>(\u2254|&#x0*2254;)</mi>", "<mo>\u2254</mo>", formula)
    except Exception as error:
        _log.warning("this is no formula: %s", error, location=node)
        return ""


def visit_inline(translator: Any, node: nodes.Node) -> None:
    """Writes a formula in a sentence."""
    translator.body.append(_mathml(node.astext(), "inline", node))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.Node) -> None:
    """Writes formulas that are displayed, one below the other."""
    formulas = [x for x in node.astext().split("\n\n") if x.strip()]
    shown = "\n".join(_mathml(x, "block", node) for x in formulas)
    translator.body.append(f'<div class="formulas">{shown}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Adds the renderer, which `html_math_renderer` chooses."""
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(visit_inline, None),
        block_renderers=(visit_block, None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
