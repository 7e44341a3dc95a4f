"""Each inner optimizer of SyncReplicas, on a cluster of real processes.

All workers have the same batch. So its gradient is the mean of each update, and the
training equals that of the inner optimizer alone.
"""

import pathlib

import clusters
import keras_sync_replicas as helpers
import keras_variants
import numpy as np
import programs
import pytest
import sync_accounting

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).with_name("sync_replicas_optimizers_program.py")
NUM_WORKERS, UPDATES = 2, 3


@pytest.fixture(scope="module")
def results():
    with clusters.Cluster(NUM_WORKERS, num_ps=2) as cluster:
        yield programs.run(PROGRAM, NUM_WORKERS, UPDATES, env=cluster.environment())


@pytest.mark.parametrize("name", helpers.OPTIMIZERS)
def test_workers_with_one_batch_train_as_the_inner_optimizer_alone(name, results):
    result, inner = results[name], helpers.OPTIMIZERS[name]()
    model = keras_variants.small_model()
    for words, targets in helpers.one_batch().repeat(UPDATES):
        helpers.train_on_batch(model, inner, words, targets)
    if getattr(inner, "use_ema", False):
        inner.finalize_variable_values(model.trainable_variables)
    expected = model.get_weights()
    for got, want in zip(result["weights"], expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    sync_accounting.assert_identities(result["stats"])
    assert result["stats"]["applied"] == NUM_WORKERS * UPDATES
    assert result["stats"]["updates"] == result["iterations"] == UPDATES
