"""Saves models with tables that grow for processes without this package."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.embedding.served_tables import ServedTable
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.embedding.growing_layer import GrowingLayer

__all__ = ["for_serving"]

# The name under which saved models find the copies of a layer's tables.
_NAME = "_served_tables"


@contextlib.contextmanager
def for_serving(model: Any) -> Iterator[None]:
    """Within this context, a model can be saved for processes without tf_syncrep.

    On entry, tables that grow are copied into the memory of this process, as sorted
    keys and their vectors, in which TensorFlow's own ops look up. An id without a row
    has a vector of zeros there, too. `model.export` does this by itself;
    `tf.saved_model.save`, `ExportArchive` and other ways to save a model for serving
    need it. It does nothing for a model without tables that grow.

    What the model's own methods trace meanwhile, such as `predict`, is forgotten at the
    end. Any other function that is traced meanwhile keeps the copies: call it for
    serving alone, and let no other thread trace the model.

    Args:
        model: a built model.

    Yields:
        Nothing.

    Example:
    ```python
    with tfs.keras.for_serving(model):
        tf.saved_model.save(model, "served", signatures=serve)
    ```
    """
    with contextlib.ExitStack() as stack:
        for layer in trainer.layers_of(model):
            if isinstance(layer, GrowingLayer):
                stack.enter_context(_served(layer))
            elif isinstance(layer, tf.keras.Model):
                stack.enter_context(trainer.functions_set_aside(layer))
        yield


def export_for_serving() -> None:
    """Makes Keras' `model.export`, if there is one, use `for_serving`."""
    compat.note_default_signatures()
    if not hasattr(tf.keras.Model, "export"):
        return
    stock = tf.keras.Model.export

    @functools.wraps(stock)
    def export(self, *args, **kwargs):
        with for_serving(self):
            return stock(self, *args, **kwargs)

    tf.keras.Model.export = export


@contextlib.contextmanager
def _served(layer: Any) -> Iterator[None]:
    tables = layer._growing
    if tables.served is not None or not tables.slabs or not layer.built:
        yield
        return
    tables.served = {name: ServedTable(*tables.read(name)) for name in tables.by_name}
    compat.track(layer, _NAME, tf.train.Checkpoint(**_numbered(tables.served)))
    try:
        with compat.without_variables(layer, tables.all_variables()):
            yield
    finally:
        compat.forget(layer, _NAME)
        tables.served = None


def _numbered(served):
    return {f"table_{number}": table for number, table in enumerate(served.values())}
