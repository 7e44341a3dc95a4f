"""Text that public docstrings have in common, written once."""

import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)


def with_texts(texts: Mapping[str, str]) -> Callable[[_Class], _Class]:
    """Puts texts in the place of the lines `{{name}}` of a class's docstring."""

    def filled(owner: _Class) -> _Class:
        if owner.__doc__:  # there are none under `python -OO`
            owner.__doc__ = re.sub(
                r"^( *)\{\{(\w+)\}\}$",
                lambda line: textwrap.indent(texts[line[2]].strip(), line[1]),
                owner.__doc__,
                flags=re.MULTILINE,
            )
        return owner

    return filled
