"""Formulas as MathML, which browsers show without a script.

The site is then complete in itself: nothing is fetched from elsewhere.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml import converter
from sphinx.util import logging

_log = logging.getLogger(__name__)


def _mathml(node: nodes.Node, display: str) -> str:
    try:
        return converter.convert(node.astext(), display=display)
    except Exception as error:
        _log.warning("this is no formula: %s", error, location=node)
        return ""


def visit_inline(translator: Any, node: nodes.Node) -> None:
    """Writes a formula in a sentence."""
    translator.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.Node) -> None:
    """Writes a formula that is displayed."""
    translator.body.append(f'<div class="math">{_mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Adds the renderer, which `html_math_renderer` chooses."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
