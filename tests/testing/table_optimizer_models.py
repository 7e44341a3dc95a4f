"""Models whose tables have optimizers of their own, for clusters and one process."""

from typing import Any

import embedding_models as models
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

STEPS, EXAMPLES = 8, 12


def dataset(context: Any = None) -> tf.data.Dataset:
    """Batches that differ, in an order."""
    del context
    batches = [models.batch(EXAMPLES, step) for step in range(STEPS)]
    ids = {k: np.stack([x[k] for x, _ in batches]) for k in models.FEATURES}
    targets = np.stack([y for _, y in batches])
    return tf.data.Dataset.from_tensor_slices((ids, targets)).repeat()


def own() -> dict[str, Any]:
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.5, 0.25])
    return {"movies": tfs.keras.Adagrad(schedule), "days": tfs.keras.SGD(0.1, 0.5)}


def make(wrap: Any = lambda x: x, **options: Any) -> Any:
    """A compiled model, with another optimizer around that of all."""
    optimizer = tfs.keras.TableOptimizers(tfs.keras.AdamAsync(0.05), **options)
    return models.make(
        models.Distributed, wrap(optimizer), models.initial_tables(), optimizers=own()
    )


def state(model: Any) -> dict[str, Any]:
    """Its weights, tables by name."""
    tables = {name: x.tolist() for name, x in model.tables().items()}
    return {**tables, "kernel": model.dense.get_weights()[0].tolist()}


def counts(optimizer: Any) -> list[int]:
    """The `iterations` of all its optimizers."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return [int(np.asarray(x.iterations)) for x in optimizer.all_optimizers()]
