"""Tables with optimizers of their own on a cluster of real processes.

The cluster has one worker, so that every step follows the one before.
"""

import pathlib
from typing import Any

import clusters
import embedding_models as models
import numpy as np
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy
from same import assert_same

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

SERVERS = 2
STEPS, EXAMPLES = 8, 12


def dataset(context: Any = None) -> tf.data.Dataset:
    """Batches that differ, in an order."""
    del context
    batches = [models.batch(EXAMPLES, step) for step in range(STEPS)]
    ids = {k: np.stack([x[k] for x, _ in batches]) for k in models.FEATURES}
    targets = np.stack([y for _, y in batches])
    return tf.data.Dataset.from_tensor_slices((ids, targets)).repeat()


def own() -> dict[str, Any]:
    """Optimizers of two tables."""
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


def synchronous(optimizer):
    return tfs.keras.SyncReplicas(optimizer, 1, 1, spares=False)


def trained(strategy, wrap=lambda x: x, **options):
    """What one process and the cluster make of the same batches."""
    single = make(**options)
    single.fit(dataset(), steps_per_epoch=STEPS, verbose=0)
    with strategy.scope():
        model = make(wrap, **options)
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    result = {
        "single": state(single),
        "cluster": state(model),
        "counts": counts(model.optimizer),
        "parts": len(model.embedding.trainable_variables),
    }
    return model, result


def saved(model, folder):
    """Files of what the cluster has trained, and how it goes on."""
    full = tfs.keras.Checkpoint(str(folder / "full"), model=model)
    changes = tfs.keras.Checkpoint(str(folder / "changes"), model=model, full_every=2)
    full.save(wait=True)
    changes.save(wait=True)
    model.save_weights(str(folder / "model.weights.h5"))
    prefix = str(folder / "tensorflow")
    tensorflow = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = tensorflow.save(prefix)
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    after = state(model)
    tensorflow.restore(path).assert_consumed()
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    changes.save(wait=True)
    again = state(model)
    tfs.keras.fit(model, dataset, steps_per_epoch=STEPS, verbose=0)
    return {"after": after, "again": again, "later": state(model)}


def trainings(folder):
    folder = pathlib.Path(folder)
    strategy = make_strategy()
    model, asynchronous = trained(strategy)
    return {
        "asynchronous": asynchronous,
        "synchronous": trained(strategy, synchronous)[1],
        "clipped": trained(strategy, synchronous, global_clipnorm=0.5)[1],
        "saved": saved(model, folder),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def training(folder):
    return clusters.call(trainings, str(folder), num_workers=1, num_ps=SERVERS)


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
def test_slabs_in_parts_train_to_the_bits_of_one_process(training, kind):
    result = training[kind]
    assert result["parts"] == 3 * SERVERS
    assert_same(result["cluster"], result["single"])
    for name, table in models.initial_tables().items():
        assert not np.allclose(result["single"][name], table, atol=0.01)
    assert result["counts"] == 3 * [STEPS]


def test_the_norm_of_all_parts_is_that_of_the_whole(training):
    result = training["clipped"]
    for name, value in result["single"].items():
        np.testing.assert_allclose(result["cluster"][name], value, atol=1e-6)
        unclipped = training["synchronous"]["single"][name]
        assert not np.allclose(value, unclipped, atol=1e-3)


def test_tensorflows_checkpoint_restores_all_optimizers(training):
    assert_same(training["saved"]["again"], training["saved"]["after"])


@pytest.mark.parametrize("kind", ["full", "changes", "file"])
def test_what_servers_saved_goes_on_in_one_process(training, folder, kind):
    model = make()
    model.optimizer.build(model.trainable_variables)
    if kind == "file":
        model.load_weights(str(folder / "model.weights.h5"))
    else:
        tfs.keras.Checkpoint(str(folder / kind), model=model).restore()
    states = [
        training["asynchronous"]["cluster"],
        training["saved"]["after"],
        training["saved"]["later"],
    ]
    done = 2 if kind == "changes" else 1
    assert_same(state(model), states[done - 1])
    model.fit(dataset(), steps_per_epoch=STEPS, verbose=0)
    assert_same(state(model), states[done])
    assert counts(model.optimizer) == 3 * [(done + 1) * STEPS]
