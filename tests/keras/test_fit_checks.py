"""What tfs.keras.fit warns of, and refuses without a cluster being at hand."""

import keras_variants
import pytest
import tensorflow as tf
from absl import logging

import tf_syncrep as tfs
from tf_syncrep.python.keras.compat import datasets
from tf_syncrep.python.keras.fit import checks

keras_3_only = pytest.mark.skipif(
    not keras_variants.IS_KERAS_3, reason="Keras 2 reads rows, and has several workers"
)


@pytest.fixture
def warnings(monkeypatch):
    lines = []
    monkeypatch.setattr(
        logging, "warning", lambda text, *args: lines.append(text % args)
    )
    return lines


@keras_3_only
def test_only_large_stock_tables_are_warned_of(warnings, monkeypatch):
    monkeypatch.setattr(checks, "LARGE_TABLE_BYTES", 1000)
    stock = tf.keras.layers.Embedding
    layers = [stock(50, 6, name="large"), stock(40, 6), tfs.keras.Embedding(50, 6)]
    inputs = tf.keras.Input((1,), dtype="int32")
    model = tf.keras.Model(inputs, [layer(inputs) for layer in layers])
    checks.warn_of_large_embeddings(model)
    assert len(warnings) == 1
    assert "layer large" in warnings[0]
    assert "tfs.keras.Embedding" in warnings[0]


def test_replicas_that_are_not_the_workers_are_warned_of(warnings):
    checks.warn_of_replicas(4, 4)
    assert not warnings
    checks.warn_of_replicas(5, 4)
    assert "total_num_replicas=5, and the cluster has 4 workers" in warnings[0]


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda data: data.batch(2).repeat(), False),
        (lambda data: data.shuffle(3).batch(2), True),
        (lambda data: data.shard(2, 0).map(lambda x: x), True),
        (lambda data: data.flat_map(lambda _: data.shuffle(2)), True),
    ],
)
def test_datasets_that_shuffle_or_are_sharded_are_known(change, differs):
    data = change(tf.data.Dataset.range(6))
    assert datasets.differs_between_workers(data) == differs


@keras_3_only
@pytest.mark.parametrize("workers", [1, 2])
def test_keras_3_with_several_mirrored_workers_is_refused(monkeypatch, workers):
    class Strategy:
        cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": ["localhost:1"] * workers})
        )

    class Model:
        distribute_strategy = Strategy()

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Strategy)
    if workers == 1:
        checks.refuse_multi_worker(Model())
    else:
        with pytest.raises(ValueError, match=r"Keras 3 does not .* 2 workers"):
            checks.refuse_multi_worker(Model())
