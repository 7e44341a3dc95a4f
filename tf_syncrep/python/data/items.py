"""The items of a work queue, as an array, and what tells them from others."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from tf_syncrep.python.base.arguments import check_count


def as_items(given: Any) -> np.ndarray | range:
    """Returns an array with an item in each row, or a range."""
    if isinstance(given, range):
        items: Any = given
    else:
        try:
            items = np.asarray(given)
        except ValueError as error:  # rows of several lengths
            raise _error(given) from error
        if items.ndim > 0 and items.dtype.kind in "SUO":
            # Strings of one length would lose the zeros at their ends.
            items = _as_strings(np.array(given, object), given)
        elif items.ndim == 0 and items.dtype.kind not in "SUO":
            items = range(check_count("items", items.item()))
    if isinstance(items, np.ndarray) and (
        items.ndim == 0 or items.dtype.kind not in "biufcO"
    ):
        raise _error(given)
    if not len(items):
        raise _error(given)
    return items


def fingerprint(items: np.ndarray | range) -> int:
    """Returns 64 bits that are the same for equal items, in any process."""
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(items, range):
        digest.update(f"{items.start} {items.step} {len(items)}".encode())
    else:
        digest.update(f"{items.dtype.kind} {items.shape}".encode())
        if items.dtype.kind == "O":
            for item in items.flat:
                encoded = item.encode() if isinstance(item, str) else item
                digest.update(len(encoded).to_bytes(8, "little") + encoded)
        else:
            digest.update(np.ascontiguousarray(items).tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)


def _as_strings(items: np.ndarray, given: Any) -> np.ndarray:
    for place, item in np.ndenumerate(items):
        if isinstance(item, os.PathLike):
            items[place] = os.fspath(item)
        elif not isinstance(item, (str, bytes)):
            raise _error(given)
    return items


def _error(given: Any) -> ValueError:
    return ValueError(
        "items must be a number, or a sequence of at least one item: numbers, or "
        f"strings and paths. Received: items={given!r}"
    )
