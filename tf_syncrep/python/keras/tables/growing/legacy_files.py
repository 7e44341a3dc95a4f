"""The older HDF5 files of Keras, in which tables that grow cannot be.

They have a layer's variables as they are: all possible rows, and no other layout. What
is loaded from them is assigned, while gradients wait that name rows by number.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.tables.growing.dynamic_tables import DynamicTables
from tf_syncrep.python.keras.tables.stacked_tables import tables_with

_LEGACY = {
    "save_weights": (".h5", ".hdf5", ".keras"),  # the last one by Keras 2
    "load_weights": (".h5", ".hdf5"),
}


def refuse_legacy_files() -> None:
    """Makes Keras refuse these files for models with tables that grow."""
    for name in _LEGACY:
        stock = getattr(tf.keras.Model, name)
        setattr(tf.keras.Model, name, _refusing(stock, name))
    stock_save = compat.older_files.save_model_to_hdf5

    @functools.wraps(stock_save)
    def save_model_to_hdf5(model, filepath, *args, **kwargs):
        _check(model, "save", filepath)
        return stock_save(model, filepath, *args, **kwargs)

    compat.older_files.save_model_to_hdf5 = save_model_to_hdf5


def _refusing(stock: Any, name: str) -> Any:
    # The first argument is named so in any Keras.
    @functools.wraps(stock)
    def method(self, filepath, *args, **kwargs):
        path = str(filepath)
        is_legacy = path.endswith(_LEGACY[name]) and not path.endswith(".weights.h5")
        if is_legacy or kwargs.get("save_format") in ("h5", "hdf5"):
            _check(self, name, filepath)
        return stock(self, filepath, *args, **kwargs)

    return method


def _check(model: Any, name: str, filepath: Any) -> None:
    """Refuses a model that has tables that grow."""
    variables = [compat.native(v) for v in model.variables]
    if tables_with(DynamicTables, variables):
        raise ValueError(
            f"`{name}` of a model with tables that grow must be given another file "
            "than Keras' older HDF5 ones, which know nothing of keys: `.weights.h5` "
            "for weights, `.keras` for a model, or use tfs.keras.Checkpoint. Received: "
            f"filepath={str(filepath)!r}"
        )
