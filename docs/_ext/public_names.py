"""The API reference: pages of public names, from their docstrings.

    .. public-names:: tfs.keras

documents all of `tfs.keras`. A public module without a page is a warning. In running
text `tfs.keras.AdamAsync`, written as code, becomes a link to it; a name that is not
there is a warning.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from typing import Any

import markdown_docstrings
import public_api
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

_log = logging.getLogger(__name__)

_PUBLIC_NAME = re.compile(rf"({public_api.ALIAS}(?:\.\w+)+)(?:\(.*\))?", re.DOTALL)

# What Keras or a session calls, and users never do.
_HOOKS = re.compile(
    r"after_\w+|before_run|begin|build|end|from_config|get_config|load_own_variables"
    r"|on_\w+|save_own_variables|set_model"
)


class PublicNames(SphinxDirective):
    """Documents the functions and classes of a public module."""

    required_arguments = 1
    option_spec = {"by-module": directives.flag}  # noqa: RUF012, as docutils has it

    def run(self) -> list[nodes.Node]:
        """Returns the documentation of the module and of all its names."""
        prefix = self.arguments[0]
        module = public_api.namespaces()[prefix]
        text = [f".. py:module:: {prefix}", ""]
        if module.__doc__:
            text += [*_rest(module.__doc__), ""]
        names = public_api.names_of(module)
        if "by-module" in self.options:
            # Names of one topic stand together, below what their module says of it.
            for source, group in itertools.groupby(
                names, lambda name: getattr(module, name).__module__
            ):
                title, _, rest = (sys.modules[source].__doc__ or "").partition("\n")
                text += [title.rstrip("."), "-" * len(title), "", *_rest(rest), ""]
                for name in group:
                    text += _documented(f"{prefix}.{name}", getattr(module, name))
        else:
            for name in names:
                text += _documented(f"{prefix}.{name}", getattr(module, name))
        _pages(self.env)[prefix] = self.env.docname
        return self.parse_text_to_nodes(
            "\n".join(text), offset=self.lineno, allow_section_headings=True
        )


def _pages(env: Any) -> dict[str, str]:
    """Returns the page of each module that has one; kept with what Sphinx has read."""
    if not hasattr(env, "public_names_pages"):
        env.public_names_pages = {}
    return env.public_names_pages


def _check_pages(app: Any, env: Any) -> None:
    del app
    for prefix in public_api.namespaces():
        if prefix not in _pages(env):
            _log.warning("no page documents %s: see docs/api", prefix)


def _rest(docstring: str) -> list[str]:
    return markdown_docstrings.to_rest(inspect.cleandoc(docstring).split("\n"))


def _documented(name: str, value: Any) -> list[str]:
    """Returns the directive for a function or class."""
    if not inspect.isclass(value):
        return [f".. autofunction:: {name}", ""]
    if issubclass(value, BaseException):
        return [f".. autoexception:: {name}", ""]
    text = [f".. autoclass:: {name}"]
    members = _members(value)
    if members:
        text.append(f"   :members: {', '.join(members)}")
    return [*text, ""]


def _members(value: type) -> list[str]:
    """Returns a class's public methods and properties that this package defines."""
    foreign = [x for x in value.__mro__ if not x.__module__.startswith("tf_syncrep.")]
    ours = [
        x for x in value.__mro__ if x not in foreign and ".compat" not in x.__module__
    ]
    names = dict.fromkeys(
        name
        for x in ours
        for name, member in vars(x).items()
        if not name.startswith("_")
        and (
            inspect.isfunction(member)
            or isinstance(member, (property, staticmethod, classmethod))
        )
    )
    return [
        name
        for name in names
        if not (_HOOKS.fullmatch(name) and any(hasattr(x, name) for x in foreign))
    ]


class LinkPublicNames(SphinxTransform):
    """Makes links of public names that are written as code."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Replaces literals by references, but in titles and in other references."""
        for node in list(self.document.findall(nodes.literal)):
            found = _PUBLIC_NAME.fullmatch(node.astext())
            if not found or _is_within(node, (nodes.title, nodes.reference)):
                continue
            reference = addnodes.pending_xref(
                "",
                refdomain="py",
                reftype="obj",
                reftarget=found[1],
                refdoc=self.env.docname,
                refwarn=True,
            )
            node.replace_self(reference)
            reference += node


def _is_within(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, (*kinds, addnodes.pending_xref)):
            return True
        parent = parent.parent
    return False


def setup(app: Any) -> dict[str, Any]:
    """Adds the directive and the links to Sphinx."""
    # By the name that users know it by, autodoc must be able to import it.
    for name, module in public_api.namespaces().items():
        sys.modules[name] = module
    app.add_directive("public-names", PublicNames)
    app.add_transform(LinkPublicNames)
    app.connect("env-check-consistency", _check_pages)
    # Notebooks start clusters: one after the other.
    return {"parallel_read_safe": False, "parallel_write_safe": True}
