"""Sizes of variables and tensors, and how they are shown."""

from collections.abc import Mapping
from typing import Any

# The tag of rows of a server, a variable and its bytes in an event file.
PLACEMENT = "placement"
# So many variables are named; what else there is is counted.
_NAMED = 3


def num_bytes(values: Any) -> int:
    """Returns the bytes of a variable, a tensor or one like it; 0 of unknown shape."""
    return (values.shape.num_elements() or 0) * values.dtype.base_dtype.size


def mebibytes(size: float) -> str:
    """Returns a number of bytes for people."""
    return f"{size / 2**20:,.1f} MiB"


def largest(sizes: Mapping[str, int]) -> str:
    """Names the largest of some variables, whose bytes are given by name."""
    names = sorted(sizes, key=lambda name: -sizes[name])
    named = [f"{name} {mebibytes(sizes[name])}" for name in names[:_NAMED]]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(named) + more
