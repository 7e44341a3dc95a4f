"""Shows what a cell of a tutorial has printed as one block.

A command's output arrives in pieces that end anywhere. MyST-NB's own `nb_merge_streams`
ends the line after each.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform


class MergeStreams(SphinxTransform):
    """Makes one block of those of a stream that follow one another."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Adds the text of each block to the first, and removes the others."""
        for first in list(self.document.findall(nodes.literal_block)):
            if not _is_stream(first) or first.parent is None:
                continue  # no stream, or a part of another already
            siblings = first.parent.children
            place = siblings.index(first)
            rest: list[nodes.Node] = []
            for node in siblings[place + 1 :]:
                if not _is_stream(node):
                    break
                rest.append(node)
            if rest:
                text = "".join(x.rawsource for x in [first, *rest])
                for node in rest:
                    first.parent.remove(node)
                    node.parent = None
                first.rawsource = text
                first.children = []
                first += nodes.Text(text)


def _is_stream(node: nodes.Node) -> bool:
    return isinstance(node, nodes.literal_block) and "stream" in node["classes"]


def setup(app: Any) -> dict[str, Any]:
    """Adds the transform to Sphinx."""
    app.add_transform(MergeStreams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
