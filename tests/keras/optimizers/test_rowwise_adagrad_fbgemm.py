"""RowwiseAdagrad beside FBGEMM's EXACT_ROWWISE_ADAGRAD, where that is installed."""

import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs

torch = pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu")
tbe = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
common = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_common")

ROWS, WIDTH, IDS, STEPS = 20, 8, 12, 6


@pytest.mark.parametrize("epsilon", [1e-8, 0.5])
def test_rows_and_their_sums_are_fbgemms(epsilon):
    random = np.random.default_rng(1)
    initial = random.normal(size=[ROWS, WIDTH]).astype(np.float32)
    theirs = tbe.SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, WIDTH, common.EmbeddingLocation.HOST, tbe.ComputeDevice.CPU)],
        optimizer=tbe.OptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.25,
        eps=epsilon,
    )
    (table,) = theirs.split_embedding_weights()
    table.copy_(torch.from_numpy(initial))
    ours = tf.Variable(initial)
    optimizer = tfs.keras.RowwiseAdagrad(0.25, epsilon=epsilon)
    optimizer.build([ours])
    for step in range(STEPS):
        # Some rows occur several times, and their gradients are summed first.
        rows = random.integers(ROWS // 2, size=IDS)
        values = (step + 1) * random.normal(size=[IDS, WIDTH]).astype(np.float32)
        found = theirs(torch.from_numpy(rows), torch.arange(IDS + 1))
        found.backward(torch.from_numpy(values))
        gradient = tf.IndexedSlices(tf.constant(values), tf.constant(rows))
        optimizer.apply_gradients([(gradient, ours)])
    ((sums,),) = theirs.split_optimizer_states()
    (slot,) = optimizer.slots(ours).values()
    assert np.abs(ours.numpy()[: ROWS // 2] - initial[: ROWS // 2]).min() > 0
    np.testing.assert_allclose(ours.numpy(), table.numpy(), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(slot.numpy()[:, 0], sums.numpy(), rtol=2e-6)
