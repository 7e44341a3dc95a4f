"""Each inner optimizer of SyncReplicas, on a cluster of real processes.

All workers have the same batch. So its gradient is the mean of each update, and the
training equals that of the inner optimizer alone.
"""

import clusters
import keras_sync_replicas as helpers
import keras_variants
import pytest
import sync_accounting
from same import assert_same

import tf_syncrep as tfs

pytestmark = pytest.mark.ci

WORKERS, UPDATES = 2, 3


def train(strategy, make_inner):
    with strategy.scope():
        model = keras_variants.small_model()
        optimizer = tfs.keras.SyncReplicas(make_inner(), *2 * [WORKERS], spares=False)
        model.compile(optimizer, loss="mse")
    data, steps = helpers.one_batch().repeat(), WORKERS * UPDATES
    tfs.keras.fit(model, data, steps_per_epoch=steps, verbose=0)
    return {
        "weights": [x.tolist() for x in model.get_weights()],
        "iterations": helpers.iterations_of(optimizer),
        "stats": optimizer.stats(),
    }


def trained():
    strategy = helpers.make_strategy()
    return {name: train(strategy, make) for name, make in helpers.OPTIMIZERS.items()}


@pytest.fixture(scope="module")
def results():
    return clusters.call(trained, num_workers=WORKERS)


@pytest.mark.parametrize("name", helpers.OPTIMIZERS)
def test_workers_with_one_batch_train_as_the_inner_optimizer_alone(name, results):
    result, inner = results[name], helpers.OPTIMIZERS[name]()
    model = keras_variants.small_model()
    for words, targets in helpers.one_batch().repeat(UPDATES):
        keras_variants.train_on_batch(model, words, targets, inner)
    if getattr(inner, "use_ema", False):
        inner.finalize_variable_values(model.trainable_variables)
    assert_same(result["weights"], model.get_weights(), 1e-5)
    sync_accounting.assert_identities(result["stats"])
    assert result["stats"]["applied"] == WORKERS * UPDATES
    assert result["stats"]["updates"] == result["iterations"] == UPDATES
