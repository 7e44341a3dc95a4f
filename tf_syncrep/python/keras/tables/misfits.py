"""Tables that a file does not fit, when weights are loaded with `skip_mismatch=True`.

Keras skips a whole layer if it raises an error then. A layer of many tables skips those
that do not fit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras.tables.setting import being_set
from tf_syncrep.python.keras.tables.stacked_tables import StackedTables

_here = threading.local()


def _skipped() -> set[tuple[int, str]] | None:
    """Returns the tables that this thread has skipped so far; None if it must not."""
    return getattr(_here, "skipped", None)


def note_skip_mismatch() -> None:
    """Makes Keras' `load_weights` tell `fits` of that argument."""
    stock = tf.keras.Model.load_weights

    # The first arguments have this order in any Keras.
    @functools.wraps(stock)
    def load_weights(self, filepath, skip_mismatch=False, *args, **kwargs):
        before, _here.skipped = _skipped(), set() if skip_mismatch else None
        try:
            with being_set:  # No checkpoint has some of it.
                return stock(self, filepath, skip_mismatch, *args, **kwargs)
        finally:
            _here.skipped = before

    tf.keras.Model.load_weights = load_weights


def fits(check: Callable[[str], Any], tables: StackedTables, name: str) -> bool:
    """Checks what a file has of a table, or of its slots.

    `check`: is given the table's name, and raises a ValueError if the file does not
    fit. Raises ValueError: that of the check, unless misfits are skipped.
    """
    skipped = _skipped()
    if skipped is not None and (id(tables), name) in skipped:
        return False
    try:
        check(name)
    except ValueError as error:
        if skipped is None:
            raise
        skipped.add((id(tables), name))
        logging.warning("Table %r is skipped, and stays as it is: %s", name, error)
        return False
    return True
