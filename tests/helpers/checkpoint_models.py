"""A model of two tables whose training can be replayed bit for bit in one process."""

import pathlib
from typing import Any

import embedding_models
import numpy as np
import tensorflow as tf

import tf_syncrep as tfs

SIZES = {"users": 300_001, "items": 150_000}
WIDTH, EXAMPLES = 16, 512


def batch() -> tuple[np.ndarray, np.ndarray]:
    """The only batch, on which everybody trains."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, size, EXAMPLES) for size in SIZES.values()]
    return np.stack(ids, axis=1), draw.normal(size=(EXAMPLES, 1)).astype(np.float32)


def dataset(context: Any = None) -> tf.data.Dataset:
    del context
    return tf.data.Dataset.from_tensors(batch()).repeat()


def make(optimizer: Any = None, wrap: Any = None) -> Any:
    """Makes the model, always with the same values.

    Its optimizer is AdamAsync by default; `wrap` makes another one around it.
    """
    tables = [tfs.keras.TableConfig(name, size, WIDTH) for name, size in SIZES.items()]
    inputs = tf.keras.Input([len(SIZES)], dtype="int64")
    layer = embedding_models.layer_of(*tables, name="tables")
    vectors = layer({name: inputs[:, i] for i, name in enumerate(SIZES)})
    joined = tf.keras.layers.Concatenate()([vectors[name] for name in SIZES])
    outputs = tf.keras.layers.Dense(1, kernel_initializer="ones")(joined)
    model = tf.keras.Model(inputs, outputs)
    draw = np.random.default_rng(1)
    layer.set_embedding_tables(
        {
            name: draw.normal(size=(size, WIDTH)).astype(np.float32)
            for name, size in SIZES.items()
        }
    )
    optimizer = optimizer or tfs.keras.AdamAsync(0.01)
    model.compile(wrap(optimizer) if wrap else optimizer, loss="mse")
    return model


def state_of(model: Any) -> dict[str, np.ndarray]:
    """Everything that training changes, with tables by name."""
    layer = model.get_layer("tables")
    dense = model.layers[-1]
    found = {f"table {k}": v for k, v in layer.get_embedding_tables().items()}
    for i, value in enumerate(dense.get_weights()):
        found[f"dense {i}"] = value
    return found


def slots_of(model: Any, slot: str) -> list[np.ndarray]:
    layer, optimizer = model.get_layer("tables"), model.optimizer
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    parts = layer.trainable_variables
    return [np.asarray(optimizer.slots(part)[slot]) for part in parts]


def assert_trained(path: pathlib.Path, most: int) -> None:
    """Asserts that the file of a result has that of some undisturbed updates.

    There are fewer than `most` if a worker was slow and its gradients came late.
    """
    model = make()
    ids, targets = (tf.constant(x) for x in batch())
    with np.load(path) as result:
        assert most / 2 < result["iterations"] <= most
        for _ in range(int(result["iterations"])):
            model.train_on_batch(ids, targets)
        for name, value in state_of(model).items():
            np.testing.assert_array_equal(result[name], value, err_msg=name)
