"""Replaces wrappers of ops while a graph is built, to stop or record at them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def replaced(
    replacements: Iterable[tuple[Any, str, Callable[..., Any]]],
) -> Iterator[None]:
    """Replaces functions of modules, each named by its module and its name.

    The function to call instead gets the original one as its first argument.
    """
    with contextlib.ExitStack() as patches:
        for module, name, replacement in replacements:
            original = getattr(module, name)
            patches.enter_context(
                mock.patch.object(module, name, _with_first(replacement, original))
            )
        yield


def _with_first(function: Callable[..., Any], first: Any) -> Callable[..., Any]:
    return lambda *args: function(first, *args)
