"""Links from pages of the site to files of the repository.

MyST makes downloads of them. Here it learns that README.md of another folder is such a
file.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform


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


def setup(app: Any) -> dict[str, Any]:
    """Adds the transformation to Sphinx."""
    app.add_transform(DownloadForeignPages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
