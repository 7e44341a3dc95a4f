"""Which names of a checkpoint a warm start takes for which names of a model.

A base name is that of a variable or a table: `tables/user`. Slots and other arrays that
belong to it follow it: `slots/m/tables/user`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

# What stands before a base name in the names of a Keras model's checkpoint.
_BEFORE = re.compile(r"^(?:slots/[^/]+/|keys/|uses/)")

Rename = Mapping[str, str] | Callable[[str], str] | None


def base_of(name: str) -> str:
    """Returns the name of the variable to which an array belongs."""
    return _BEFORE.sub("", name)


class Matching:
    """The names that a model's variables have in a checkpoint."""

    def __init__(
        self,
        own: Iterable[str],
        stored: Iterable[str],
        rename: Rename,
        skip: Any,
        base_of: Callable[[str], str] = base_of,
    ):
        """Matches base names, and raises ValueError if an argument fits none.

        `own`: names of the model; `stored`: those of the checkpoint. `rename`, `skip`:
        the users' arguments. `base_of`: returns the base name of an array.
        """
        self.base_of = base_of
        self._own = {base_of(name) for name in own}
        self.stored = {base_of(name) for name in stored}
        self._skip = _checked_skip(skip, {*own})
        by_rule: dict[str, str] = {}
        for name in sorted(self.stored):
            new = renamed(name, rename)
            if new == name:
                continue
            if new not in self._own:
                if not isinstance(rename, Mapping):
                    self._check_leads({name: new})
                continue
            if new in by_rule:
                raise ValueError(
                    "`rename` must lead to different names. Received: rename of both "
                    f"{by_rule[new]!r} and {name!r} to {new!r}"
                )
            by_rule[new] = name
        if isinstance(rename, Mapping):
            self._check_leads(rename)
        # What was renamed is not there under its former name.
        gone = set(by_rule.values())
        self._source = {name: name for name in self._own & self.stored - gone} | by_rule

    def _check_leads(self, rename: Mapping[str, str]) -> None:
        """Raises if a name is not there, or leads to none; some within it may."""
        for old, new in rename.items():
            if not any(_is_within(name, old) for name in self.stored):
                raise ValueError(
                    "`rename` must be of names in the checkpoint. Received: rename of "
                    f"{old!r}{_similar(old, self.stored)}"
                )
            if not any(_is_within(x, new) or _is_within(new, x) for x in self._own):
                raise ValueError(
                    "`rename` must lead to names of the model. Received: rename of "
                    f"{old!r} to {new!r}{_similar(new, self._own)}"
                )

    def source_of(self, name: str) -> str | None:
        """Returns the name of an array in the checkpoint; None if it has none."""
        base = self.base_of(name)
        source = self._source.get(base)
        return None if source is None else name[: len(name) - len(base)] + source

    def is_skipped(self, name: str) -> bool:
        """Returns whether a user has left a variable, or an array of it, out."""
        return any(
            _is_within(x, s) for s in self._skip for x in (name, self.base_of(name))
        )

    @property
    def used(self) -> set[str]:
        """The base names in the checkpoint that are those of variables."""
        return set(self._source.values())


def renamed(name: str, rename: Rename) -> str:
    """Returns the name in a model of a base name in a checkpoint."""
    if rename is None:
        return name
    if not isinstance(rename, Mapping):
        new = rename(name)
        if not isinstance(new, str):
            raise ValueError(
                "`rename` must return a name. Received: a function that returns "
                f"{new!r} for {name!r}"
            )
        return new
    # The longest one is the closest.
    for old in sorted(rename, key=len, reverse=True):
        if _is_within(name, old):
            return rename[old] + name[len(old) :]
    return name


def check_rename(rename: Any) -> None:
    """Checks the type of a user's `rename`."""
    is_names = isinstance(rename, Mapping) and all(
        isinstance(x, str) and x for pair in rename.items() for x in pair
    )
    if not (rename is None or is_names or callable(rename)):
        raise ValueError(
            "`rename` must be a dict from names in the checkpoint to names of the "
            f"model, or a function of a name. Received: rename={rename!r}"
        )


def _checked_skip(skip: Any, own: Collection[str]) -> Sequence[str]:
    names = [skip] if isinstance(skip, str) else skip
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(
        isinstance(x, str) and x for x in names
    ):
        raise ValueError(f"`skip` must be names of the model. Received: skip={skip!r}")
    for name in names:
        if not any(_is_within(x, name) for x in own):
            raise ValueError(
                f"`skip` must be of names of the model. Received: skip of {name!r}"
                f"{_similar(name, own)}"
            )
    return [*names]


def _is_within(name: str, scope: str) -> bool:
    """Returns whether a name is another one, or is in the scope of that name."""
    return name == scope or name.startswith(scope + "/")


def _similar(name: str, names: Collection[str]) -> str:
    found = difflib.get_close_matches(name, sorted(names), 3, 0.5)
    return f"; there is {', '.join(map(repr, found or sorted(names)[:5]))}"
