"""Checks for private names whose absence would go unnoticed.

If a private name that is called or imported does not exist, there is an error. If it is
overridden, set, or read with a default, there is none: the base class's own code would
run, or all workers would read the data of one. So these names are checked at import.
"""

import inspect
import types
from typing import Any

import tensorflow as tf
from absl import logging

# Private: TensorFlow itself looks up in these modules what compat modules replace.
from tensorflow.python.distribute import parameter_server_strategy_v2  # pyright: ignore
from tensorflow.python.distribute.coordinator import values  # pyright: ignore
from tensorflow.python.eager import cancellation, context  # pyright: ignore
from tensorflow.python.eager.polymorphic_function import (  # pyright: ignore
    function_context,
)
from tensorflow.python.framework import random_seed  # pyright: ignore
from tensorflow.python.ops import resource_variable_ops  # pyright: ignore

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

# No version of Keras 3 from this one on was tried.
UNTRIED_KERAS = "3.17"

_NAMES: dict[Any, list[str]] = {
    cancellation: ["context"],
    context: ["executor_scope"],
    function_context: ["make_function_context"],
    parameter_server_strategy_v2.ParameterServerStrategyV2Extended: [
        "_allow_run_without_coordinator",
        "_create_variable_round_robin",
        "_variable_count",
    ],
    random_seed: ["get_seed"],
    resource_variable_ops.BaseResourceVariable: ["_handle"],
    values.PerWorkerDatasetFromDatasetFunction: ["_dataset_fn"],
}
if IS_KERAS_3:
    _NAMES |= {
        tf.keras.optimizers.Optimizer: [
            "_apply_weight_decay",
            "_backend_apply_gradients",
            "_clip_gradients",
            "_iterations",
            "_overwrite_model_variables_with_average_value",
        ],
        tf.keras.callbacks.BackupAndRestore: ["_initial_epoch"],
        tf.keras.layers.Layer: ["_seed_generators"],
        tf.keras.Model: [
            "_compile_loss",
            "_default_save_signature",
            "_initial_epoch",
            "_loss_tracker",
        ],
        tf.keras.Sequential: ["_layers"],
    }
else:
    _NAMES |= {
        tf.keras.optimizers.Optimizer: [
            "_apply_weight_decay",
            "_built",
            "_clip_gradients",
            "_deduplicate_sparse_grad",
            "_internal_apply_gradients",
            "_iterations",
            "_learning_rate",
            "_variables",
        ],
        tf.keras.callbacks.BackupAndRestore: ["_training_state"],
        tf.keras.Model: ["_training_state"],
        tf.keras.layers.Dropout: ["_random_generator"],
    }


def missing_names() -> list[str]:
    """Returns the names that this TensorFlow or Keras lacks, each after its owner."""
    return [
        f"{owner.__name__}.{name}"
        for owner, names in _NAMES.items()
        for name in names
        if not hasattr(owner, name) and name not in _names_in(owner)
    ]


def is_untried(version: str) -> bool:
    """Returns whether a version of Keras is later than those that were tried."""
    major_minor, untried = (
        tuple(map(int, text.split(".")[:2])) for text in (version, UNTRIED_KERAS)
    )
    return major_minor >= untried


def warn_of_untried_keras() -> None:
    """Warns once in a process that this package was not made for this Keras."""
    missing = missing_names()
    if missing:
        logging.warning(
            "tf_syncrep relies on names that this Keras, or TensorFlow %s, lacks, and "
            "may train wrongly: %s. Keras before %s was tried.",
            tf.__version__,
            ", ".join(missing),
            UNTRIED_KERAS,
        )
    elif IS_KERAS_3 and is_untried(tf.keras.__version__):
        logging.warning(
            "tf_syncrep was not tried with Keras %s, only with those before %s.",
            tf.keras.__version__,
            UNTRIED_KERAS,
        )


def _names_in(owner: Any) -> set[str]:
    """Finds the attributes that the methods of a class and of its bases use."""
    names: set[str] = set()
    for kind in getattr(owner, "__mro__", ()):
        for attribute in vars(kind).values():
            code = getattr(inspect.unwrap(attribute), "__code__", None)
            names |= _names_of(code) if code else set()
    return names


def _names_of(code: types.CodeType) -> set[str]:
    """Finds the names that a function uses, and those of functions within it."""
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    return {*code.co_names}.union(*map(_names_of, inner))
