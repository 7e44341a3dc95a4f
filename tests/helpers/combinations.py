"""The combinations of values that each change is tested with, and those by night."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def mostly_by_night(values: Iterable[Any], *by_day: Any) -> list[Any]:
    """The values of an argument, all of which but those `by_day` are marked `slow`."""
    return [
        pytest.param(value, marks=() if value in by_day else pytest.mark.slow)
        for value in values
    ]


def thinned(
    names: str, *axes: Iterable[Any], indirect: Sequence[str] = ()
) -> pytest.MarkDecorator:
    """Parametrizes with all combinations, most of which are marked `slow`.

    The others have each value of each axis at least once, and the first value of the
    first axis, which the test is about, with each value of the other axes. `names` and
    `indirect` are as for `pytest.mark.parametrize`.
    """
    lists = [list(axis) for axis in axes]
    diagonal = {
        tuple(values[i % len(values)] for values in lists)
        for i in range(max(map(len, lists)))
    }
    kept = diagonal | {(lists[0][0], *others) for _, *others in diagonal}
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(*values, marks=() if values in kept else pytest.mark.slow)
            for values in itertools.product(*lists)
        ],
        indirect=list(indirect),
    )
