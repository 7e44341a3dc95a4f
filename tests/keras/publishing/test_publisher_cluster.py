"""Publications of a training on a cluster, beside one that runs in one process."""

import clusters
import numpy as np
import programs
import published_models as models
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.serving.publications import has_delta, is_full

pytestmark = pytest.mark.ci

WORKERS, SERVERS, STEPS = 2, 2, 40


def size_of(kind):
    return tfs.keras.Dynamic(models.SIZE) if kind == "growing" else models.SIZE


def the_batch():
    """The only batch, so that it does not matter which worker is faster."""
    return models.batch(np.random.default_rng(3))


def data(context):
    del context
    return tf.data.Dataset.from_tensors(the_batch()).repeat()


class NotTooFast(tf.keras.callbacks.Callback):
    """Lets training wait for the publication that was begun some batches before."""

    def __init__(self, publisher):
        super().__init__()
        self._publisher = publisher

    def on_train_batch_end(self, batch, logs=None):
        if batch % 3 == 2 and self._publisher.publishing is not None:
            self._publisher.publishing.wait_until_over()


def trained(folder, kind, is_synchronous):
    """Trains and publishes as the coordinator; returns what it predicts in the end."""
    with make_strategy().scope():
        optimizer = tfs.keras.AdamAsync(0.05)
        if is_synchronous:
            optimizer = tfs.keras.SyncReplicas(
                optimizer, WORKERS, WORKERS, spares=False
            )
        model = models.make(size_of(kind), optimizer=optimizer, is_normalized=False)
    publisher = tfs.keras.Publisher(folder, every_n_steps=3, full_every=3, keep=99)
    tfs.keras.fit(
        model,
        data,
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[publisher, NotTooFast(publisher)],
    )
    return model(models.probe()).numpy().tolist()


def train(folder, kind, is_synchronous=True):
    with clusters.Cluster(WORKERS, SERVERS) as cluster:
        found = programs.call(
            trained, str(folder), kind, is_synchronous, env=cluster.environment()
        )
    return np.float32(found)


class Twin:
    """The same training in one process."""

    def __init__(self, kind):
        self._model = models.make(size_of(kind), is_normalized=False)
        self._updates = 0

    def predict_after(self, updates):
        for _ in range(updates - self._updates):
            self._model.train_on_batch(*the_batch())
        self._updates = updates
        return self._model(models.probe()).numpy()


@pytest.mark.parametrize("kind", ["fixed", "growing"])
def test_each_publication_is_of_one_moment(tmp_path, kind):
    with models.Recorded(tmp_path, models.probe()) as live:
        last = train(tmp_path, kind)
        manifests = models.manifests(tmp_path)
        live.wait(manifests[-1].number)
    assert live.follower.numbers()["fulls"] == 1
    np.testing.assert_array_equal(live.predict(), last)
    assert sum(map(is_full, manifests)) > 1
    assert any(map(has_delta, manifests))
    twin = Twin(kind)
    for version, updates in live.updates.items():
        np.testing.assert_array_equal(
            live.predictions[version], twin.predict_after(updates), str(version)
        )
    # Each full publication is what the deltas before it lead to.
    for manifest in filter(is_full, manifests):
        model = tf.saved_model.load(f"{tmp_path}/{manifest.number}")
        found = model.signatures["serving_default"](**models.probe())["output_0"]
        wanted = live.predictions.get(manifest.number)
        if wanted is None:  # It was not there yet.
            continue
        np.testing.assert_array_equal(found, wanted, str(manifest.number))


@pytest.mark.parametrize("kind", ["fixed", "growing"])
def test_the_last_publication_is_the_end_of_an_asynchronous_training(tmp_path, kind):
    with models.Recorded(tmp_path, models.probe()) as live:
        last = train(tmp_path, kind, is_synchronous=False)
        live.wait(models.manifests(tmp_path)[-1].number)
        np.testing.assert_array_equal(live.predict(), last)
    with models.Recorded(tmp_path, models.probe()) as late:
        late.wait(models.manifests(tmp_path)[-1].number)
        np.testing.assert_array_equal(late.predict(), last)
