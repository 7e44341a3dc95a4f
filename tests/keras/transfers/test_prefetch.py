"""`tfs.keras.fit(prefetch_rows=True)`: rows that miss the update of one step."""

from typing import Any

import clusters
import keras_variants
import numpy as np
import prefetch_twin
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy
from prefetch_twin import EPOCHS, FEATURES, RATE, ROWS, STEPS, WIDTH, first_values

import tf_syncrep as tfs
from tf_syncrep.python.distribute import threads

layers = tf.keras.layers
KINDS, SOURCES = ("distributed", "layers"), ("sent", "worker", "ends")
TRAININGS = [
    *(f"{kind} {source} early" for kind in KINDS for source in SOURCES),
    "distributed worker late",
    # Ids that depend on rows are known only when these have come.
    "twice worker early",
    "twice worker late",
]


def dataset(context=None):
    del context
    return tf.data.Dataset.from_tensor_slices(prefetch_twin.data()).batch(
        prefetch_twin.BATCH
    )


class Twice(layers.Layer):
    """Looks ids up, and then others that depend on what was found."""

    def __init__(self, tables: Any):
        super().__init__()
        self.tables = tables

    def build(self, shape):
        del shape

    def call(self, ids):
        first, _ = self.tables([ids[:, 0], ids[:, 1]])
        sizes = tf.reduce_sum(tf.abs(first), axis=1)
        found = tf.math.floormod(tf.cast(sizes * prefetch_twin.FOUND, tf.int32), ROWS)
        return tf.concat(self.tables([ids[:, 0], found]), axis=1)


def distributed():
    tables = [
        tfs.keras.TableConfig(
            f"table_{i}", ROWS, WIDTH, tf.keras.initializers.Constant(first_values()[i])
        )
        for i in range(FEATURES)
    ]
    return tfs.keras.DistributedEmbedding(
        [tfs.keras.FeatureConfig(table.name, table) for table in tables]
    )


def model_of(kind, optimizer):
    ids = layers.Input((FEATURES,), dtype="int32")
    values = first_values()
    if kind == "twice":
        vectors = Twice(distributed())(ids)
    elif kind == "layers":
        tables = [
            tfs.keras.Embedding(
                ROWS, WIDTH, tf.keras.initializers.Constant(values[i]), shards=2
            )
            for i in range(FEATURES)
        ]
        vectors = layers.Concatenate()([x(ids[:, i]) for i, x in enumerate(tables)])
    else:
        tables = distributed()
        vectors = layers.Concatenate()(tables([ids[:, i] for i in range(FEATURES)]))
    dense = layers.Dense(1)
    model = tf.keras.Model(ids, dense(vectors))
    dense.set_weights(values[FEATURES:])
    options = {"steps_per_execution": prefetch_twin.PER_EXECUTION}
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    return model


def trained(strategy, kind, source, prefetch):
    with strategy.scope():
        model = model_of(kind, tfs.keras.SGD(RATE))
    batches = []
    keep = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(batch)
    )
    arguments: dict[str, Any] = {"x": dataset()}
    if source == "worker":
        arguments = {"x": lambda c: dataset(c).repeat(), "steps_per_epoch": STEPS}
    elif source == "ends":
        arguments = {"x": dataset}
    history = tfs.keras.fit(
        model,
        **arguments,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[keep],
        prefetch_rows=prefetch,
    )
    return {
        "weights": [x.tolist() for x in model.get_weights()],
        "iterations": int(keras_variants.native(model.optimizer.iterations).numpy()),
        "history": {name: list(map(float, x)) for name, x in history.history.items()},
        "batches": batches,
    }


def refused(strategy):
    """What is said of models that cannot have it."""
    said = {}
    with strategy.scope():
        synchronous = model_of(
            "distributed", tfs.keras.SyncReplicas(tfs.keras.SGD(RATE), 1)
        )
        ids = layers.Input((), dtype="int64")
        growing = tfs.keras.Embedding(
            tfs.keras.Dynamic(10), WIDTH, name="growing_words"
        )
        grown = tf.keras.Model(ids, layers.Dense(1)(growing(ids)))
        grown.compile(tfs.keras.AdamAsync(), "mse")
    for name, model in (("synchronous", synchronous), ("growing", grown)):
        try:
            tfs.keras.fit(model, dataset(), prefetch_rows=True)
        except ValueError as error:
            said[name] = str(error)
    return said


def trainings(names):
    strategy = make_strategy()
    results = {"refused": refused(strategy)}
    for name in names:
        kind, source, prefetch = name.split()
        results[name] = trained(strategy, kind, source, prefetch == "early")
    return results


@pytest.fixture(scope="module")
def results():
    return clusters.call(trainings, TRAININGS, num_workers=1)


@pytest.mark.ci
@pytest.mark.parametrize("name", TRAININGS)
def test_each_step_misses_the_update_of_the_one_before(results, name):
    is_early, is_twice = name.endswith("early"), name.startswith("twice")
    expected, losses, errors = prefetch_twin.trained(is_early, is_twice)
    other, *_ = prefetch_twin.trained(not is_early, is_twice)
    result = results[name]
    # The tables may be one variable, one behind the other.
    weights, expected = (
        np.concatenate([np.ravel(x) for x in some])
        for some in (result["weights"], expected)
    )
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(other[0].ravel() - expected[: other[0].size])) > 1e-3
    assert result["iterations"] == EPOCHS * STEPS
    np.testing.assert_allclose(result["history"]["loss"], losses, rtol=1e-4)
    np.testing.assert_allclose(result["history"]["mae"], errors, rtol=1e-4)
    assert result["batches"] == [3, 7, 9] * EPOCHS


@pytest.mark.ci
def test_refuses_updates_that_are_synchronous_and_rows_that_may_go(results):
    assert results["refused"] == {
        "synchronous": "prefetch_rows is for asynchronous training: all gradients of a "
        "synchronous update are computed with the same weights. "
        "Received: prefetch_rows=True with SyncReplicas",
        "growing": "prefetch_rows is for tables of a fixed size: a lookup in a table "
        "that grows changes what the next one finds. Received: prefetch_rows=True with "
        "table growing_words",
    }


def test_a_worker_that_was_told_to_have_one_thread_does_not_stand_still():
    """It would wait in a step for a server, and answer none."""
    name = "distributed worker late"
    env = {threads.INTER_OP_VARIABLE: "1", threads.INTRA_OP_VARIABLE: "1"}
    result = clusters.call(trainings, [name], num_workers=1, env=env)[name]
    assert result["iterations"] == EPOCHS * STEPS
