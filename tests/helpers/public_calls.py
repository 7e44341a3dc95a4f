"""Calls of tf_syncrep in shown code: the names and arguments in them must exist."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from typing import Any

import tf_syncrep as tfs


def wrong_calls(code: str, name: str) -> list[str]:
    """A line for each keyword that a function or class does not take.

    `tfs` in the code is tf_syncrep; `name` says where the code is. If a name in it does
    not exist, there is an AttributeError.
    """
    found = []
    for node in ast.walk(ast.parse(code, name)):
        if isinstance(node, ast.Call) and (called := _public_name(node.func)):
            given = {k.arg for k in node.keywords if k.arg}
            unknown = given - _keywords(look_up(called), given)
            if unknown:
                found.append(f"{name}:{node.lineno}: {called} takes no {unknown}")
        elif isinstance(node, ast.Attribute) and (used := _public_name(node)):
            look_up(used)
    return found


def look_up(dotted: str) -> Any:
    """Returns the object that a name such as `tfs.keras.fit` stands for."""
    return functools.reduce(getattr, dotted.split(".")[1:], tfs)


def _public_name(node: ast.expr) -> str | None:
    """Returns `tfs.keras.fit` for that expression, and None for any other."""
    text = ast.unparse(node)
    return text if re.fullmatch(r"tfs(\.\w+)+", text) else None


def _keywords(called: Any, given: set[str]) -> set[str]:
    """The keywords that it accepts; all of the given ones if it accepts any."""
    found = inspect.signature(called).parameters.values()
    if any(p.kind == p.VAR_KEYWORD for p in found):
        return given
    return {p.name for p in found}
