"""Links to files of the repository, and in its Markdown pages beside the site.

In those of the site MyST checks links, and makes downloads of files. Here it learns
that README.md of another folder is such a file. In README.md and so on a relative link
must name a file, and its fragment a heading there.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

_log = logging.getLogger(__name__)

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


class DownloadForeignPages(SphinxTransform):
    """Makes downloads of links to Markdown files that are no pages of the site.

    Of those to a folder, too: of its README.md.
    """

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Replaces the references that MyST made of them."""
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") != "myst" or node["reftarget"] in self.env.all_docs:
                continue
            root = pathlib.Path(self.env.srcdir).resolve()
            if node.get("refdomain") == "doc":
                path = (root / (node["reftarget"] + ".md")).resolve()
            else:
                page = pathlib.Path(self.env.doc2path(self.env.docname))
                path = (page.parent / node["reftarget"] / "README.md").resolve()
            if path.is_relative_to(root) or not path.is_file():
                continue
            download = addnodes.download_reference(
                "", "", reftarget="/" + os.path.relpath(path, root)
            )
            download += nodes.literal("", node.astext(), classes=["download"])
            node.replace_self(download)


def wrong_links(page: pathlib.Path) -> list[str]:
    """Finds what a page links to that is not there.

    Args:
        page: a Markdown file.

    Returns:
        The links.
    """
    links = _LINK.findall(_FENCE.sub("", page.read_text()))
    return [x for x in links if "://" not in x and not _is_there(page, x)]


def _is_there(page: pathlib.Path, link: str) -> bool:
    path, _, fragment = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return False
    return not fragment or fragment in map(
        _anchor, _HEADING.findall(_FENCE.sub("", target.read_text()))
    )


def _anchor(heading: str) -> str:
    """Returns the anchor that GitHub gives a heading."""
    words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return words.replace(" ", "-")


def _check(app: Any, env: Any) -> None:
    del env
    root = pathlib.Path(app.srcdir).parent
    for page in [*root.glob("*.md"), *root.glob("[!.]*/README.md")]:
        for link in wrong_links(page):
            _log.warning("%s links to %s, which is not there", page.name, link)


def setup(app: Any) -> dict[str, Any]:
    """Has Sphinx check the links when all pages are read."""
    app.add_transform(DownloadForeignPages)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
