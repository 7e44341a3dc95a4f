"""The optimizers that train tables that grow, wherever a program has them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables.row_slots import refuse_unfit
from tf_syncrep.python.keras.tables.stacked_tables import StackedTables, all_made

# An optimizer may be built while another thread asks.
_lock = threading.Lock()


def trainers_of(*several: StackedTables) -> list[Any]:
    """Returns the optimizers that were built to train tables, and ours around them."""
    with _lock:
        found = {id(x): x for tables in several for x in tables.trainers or ()}
    return list(found.values())


def give_other_keys(tables: StackedTables, give: Callable[[], None]) -> None:
    """Gives rows other keys, and has optimizers drop what they have collected.

    `give`: gives the keys. It is called between two updates, maybe by another thread.
    """
    for optimizer in trainers_of(tables):
        if hasattr(optimizer, "drop_gradients"):
            reason = "rows of tables have other keys now"
            give = functools.partial(optimizer.drop_gradients, give, reason)
    give()


def note_trainer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Notes an optimizer if tables that grow are among what it will train.

    Keras calls it for its own optimizers. One of this package that is around others,
    and keeps gradients that name rows, calls it when it is built.

    Raises ValueError: the optimizer cannot train tables that grow.
    """
    built_with = {id(compat.native(variable)) for variable in variables}
    for tables in all_made():
        parts = {id(compat.native(part)) for part in tables.all_trained()}
        if tables.trainers is not None and parts & built_with:
            refuse_legacy(
                optimizer,
                "An optimizer of tables that grow must not be one of "
                "tf.keras.optimizers.legacy, since slots of a row have to begin anew "
                "with its next key",
            )
            refuse_unfit(optimizer)
            with _lock:
                tables.trainers.add(optimizer)


def refuse_legacy(optimizer: Any, rule: str) -> None:
    """Raises for an optimizer whose slots are not known: the rule, and its class."""
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        kind = type(optimizer)
        raise ValueError(f"{rule}. Received: {kind.__module__}.{kind.__name__}")
