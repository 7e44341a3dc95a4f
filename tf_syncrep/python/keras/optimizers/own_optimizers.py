"""Optimizers that train single tables in the place of the model's optimizer."""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.builds import before_builds
from tf_syncrep.python.keras.optimizers.rules.adagrad import Adagrad
from tf_syncrep.python.keras.optimizers.rules.adam_async import AdamAsync
from tf_syncrep.python.keras.optimizers.rules.ftrl import FTRL
from tf_syncrep.python.keras.optimizers.rules.rowwise_adagrad import RowwiseAdagrad
from tf_syncrep.python.keras.optimizers.rules.sgd import SGD
from tf_syncrep.python.keras.tables.stacked_tables import own_slabs_of

# These lower-case names mean optimizers of this package, whose steps cost only what a
# batch touches. All other names mean optimizers of Keras.
_OWN = {
    "adagrad": Adagrad,
    "adam": AdamAsync,
    "adamasync": AdamAsync,
    "ftrl": FTRL,
    "rowwiseadagrad": RowwiseAdagrad,
    "sgd": SGD,
}
# An optimizer with one of the first attributes needs the gradients of all variables,
# and one with one of the second collects or scales gradients.
_OF_ALL = ("global_clipnorm", "loss_scale_factor")
_AROUND = ("inner_optimizer", "gradient_accumulation_steps")

# All optimizers that were made to train tables.
_made: weakref.WeakSet[Any] = weakref.WeakSet()


class OwnOptimizer:
    """A maker of an optimizer for tables.

    Two makers are equal if their optimizers have the same class and configuration,
    apart from the name. A function that computes a rate is equal to itself alone.
    """

    def __init__(self, given: Any):
        """Notes which optimizer to make."""
        if compat.excludes_from_weight_decay(given):
            raise ValueError(
                "The optimizer of a table is made from a class and configuration, of "
                "which exclude_from_weight_decay is no part: make one without "
                f"weight_decay. Received: {type(given).__name__} for which it was "
                "called"
            )
        if isinstance(given, str):
            self._kind = _class_of(given)
            self._config: dict[str, Any] = {}
        else:
            self._kind = type(given)
            self._config = given.get_config()
        as_json = json.dumps(
            {k: x for k, x in self._config.items() if k != "name"},
            sort_keys=True,
            default=_as_json,
        )
        schedule = None if isinstance(given, str) else compat.schedule_of(given)
        is_schedule = isinstance(
            schedule, tf.keras.optimizers.schedules.LearningRateSchedule
        )
        self._key = self._kind, as_json, None if is_schedule else schedule
        if schedule is not None:
            # The schedule itself is kept, since a user's class may not be registered.
            self._config["learning_rate"] = schedule

    def make(self, number: int) -> Any:
        """Makes an optimizer; files need a `number` that is unique within the model."""
        name = f"table_optimizer_{number}"
        config = dict(self._config)
        if not config or "name" in config:
            config["name"] = name
        # In Keras 2 the counters of all optimizers have the same name.
        with tf.name_scope(name):
            optimizer = self._kind.from_config(config)
        _made.add(optimizer)
        return optimizer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnOptimizer) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return self._kind.__name__


def checked(given: Any, owner: str) -> Any:
    """Checks the optimizer that was given for a table.

    `given`: a Keras optimizer, its name, or `"auto"` or None for the model's. Returns
    the optimizer or its name; None for the model's. Raises ValueError: it is none of
    these, or an optimizer that cannot be a table's own.
    """
    given = as_python(given)
    if given is None or given == "auto":
        return None
    if isinstance(given, str):
        if _class_of(given) is None:
            raise ValueError(
                f"{owner}: optimizer must be a Keras optimizer, or the name of one. "
                f"Received: optimizer={given!r}"
            )
        return given
    check_one_of_several(given, "optimizer", f"{owner}: optimizer")
    return given


def check_one_of_several(optimizer: Any, argument: str, what: str) -> None:
    """Raises for an optimizer that cannot train a part of a model's variables."""
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise ValueError(
            f"{what} must be a Keras optimizer, or the name of one. Received: "
            f"{argument}={optimizer!r}"
        )
    for name in _OF_ALL:
        if getattr(optimizer, name, None):
            raise ValueError(
                f"{what} must be made without {name}, which concerns the gradients of "
                f"all variables: give it to tfs.keras.TableOptimizers. Received: "
                f"{type(optimizer).__name__} with {name}={getattr(optimizer, name)}"
            )
    for name in _AROUND:
        if getattr(optimizer, name, None):
            raise ValueError(
                f"{what} must make an update of each gradient by itself: an optimizer "
                "that collects or scales gradients goes around "
                "tfs.keras.TableOptimizers. Received: "
                f"{type(optimizer).__name__} with {name}"
            )
    if hasattr(optimizer, "all_optimizers"):
        raise ValueError(
            f"{what} must be one optimizer. Received: {type(optimizer).__name__}"
        )


def refuse_other_optimizers() -> None:
    """Makes all other optimizers refuse to train tables that have their own.

    Otherwise the model's optimizer would silently train these tables, too.
    """
    before_builds(_refuse)


def _refuse(optimizer: Any, variables: Sequence[Any]) -> None:
    # The inner optimizer of a wrapper is checked when it is built itself.
    if getattr(optimizer, "inner_optimizer", None) is not None or optimizer in _made:
        return
    for slab in filter(None, own_slabs_of(variables)):
        raise ValueError(
            f"Table {slab.tables[0].name!r} has an optimizer of its own, "
            f"{slab.optimizer}. The model must be trained by "
            "tfs.keras.TableOptimizers(optimizer), where `optimizer` trains all other "
            f"variables. Received: {type(optimizer).__name__}"
        )


def _class_of(name: str) -> Any:
    """Finds the class that a name means; returns None if there is none."""
    small = name.lower().replace("_", "")
    if small in _OWN:
        return _OWN[small]
    keras = tf.keras.optimizers
    for attribute in dir(keras):
        kind = getattr(keras, attribute)
        if attribute.lower() == small and isinstance(kind, type):
            is_one = issubclass(kind, keras.Optimizer) and kind is not keras.Optimizer
            return kind if is_one and small != "lossscaleoptimizer" else None
    return None


def _as_json(value: Any) -> Any:
    """Converts NumPy's numbers into Python's, and other values into their `repr`."""
    python = as_python(value)
    return repr(python) if python is value else python
