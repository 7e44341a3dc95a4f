"""Publications of a training on a cluster, beside one that runs in one process."""

import threading
from unittest import mock

import clusters
import numpy as np
import programs
import published_models as models
import pytest
import tensorflow as tf
import waiting
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.directory import Directory
from tf_syncrep.python.keras.publishing import publisher as publisher_module
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
    """Lets training wait for what was begun to be written some batches before."""

    def __init__(self, *savings):
        super().__init__()
        self._savings = savings

    def on_train_batch_end(self, batch, logs=None):
        for saving in (function() for function in self._savings if batch % 3 == 2):
            if saving is not None:
                saving.wait_until_over()


def trained(folder, kind, is_synchronous):
    """Trains, publishes and saves as the coordinator; returns what it predicts then."""
    with make_strategy().scope():
        optimizer = tfs.keras.AdamAsync(0.05)
        if is_synchronous:
            optimizer = tfs.keras.SyncReplicas(
                optimizer, WORKERS, WORKERS, spares=False
            )
        model = models.make(size_of(kind), optimizer=optimizer, is_normalized=False)
    options = {"every_n_steps": 3, "full_every": 3, "keep": 99}
    publisher = tfs.keras.Publisher(folder, **options)
    checkpoint = tfs.keras.Checkpoint(f"{folder}/saved", **options)
    not_too_fast = NotTooFast(lambda: publisher.publishing, lambda: checkpoint.saving)
    tfs.keras.fit(
        model,
        data,
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[publisher, checkpoint, not_too_fast],
    )
    return model(models.probe()).numpy().tolist()


def train(folder, kind, is_synchronous=True, function=trained):
    with clusters.Cluster(WORKERS, SERVERS) as cluster:
        found = programs.call(
            function, str(folder), kind, is_synchronous, env=cluster.environment()
        )
    return np.asarray(found, np.float32)


def after_each_update(kind):
    """What the same training in one process predicts, by the number of updates."""
    model, found = models.make(size_of(kind), is_normalized=False), {}
    for updates in range(STEPS + 1):
        found[updates] = model(models.probe()).numpy()
        model.train_on_batch(*the_batch())
    return found


def assert_saved(folder, kind, wanted):
    """Asserts that each checkpoint has what was predicted at its update."""
    manifests = Directory(folder).manifests()
    assert {x.is_full for x in manifests} == {True, False}
    for manifest in manifests:
        model = models.make(size_of(kind), is_normalized=False)
        checkpoint = tfs.keras.Checkpoint(folder, model=model)
        checkpoint._engine._restore(checkpoint._contents_of_model(), manifest)
        np.testing.assert_array_equal(
            model(models.probe()).numpy(), wanted[manifest.state["iterations"]]
        )


@pytest.mark.parametrize("kind", ["fixed", "growing"])
def test_each_publication_and_each_checkpoint_beside_it_is_of_one_moment(
    tmp_path, kind
):
    with models.Recorded(tmp_path, models.probe()) as live:
        last = train(tmp_path, kind)
        manifests = models.manifests(tmp_path)
        live.wait(manifests[-1].number)
    assert live.follower.numbers()["fulls"] == 1
    np.testing.assert_array_equal(live.predict(), last)
    assert sum(map(is_full, manifests)) > 1
    assert any(map(has_delta, manifests))
    wanted = after_each_update(kind)
    for version, updates in live.updates.items():
        np.testing.assert_array_equal(
            live.predictions[version], wanted[updates], str(version)
        )
    assert_saved(tmp_path / "saved", kind, wanted)
    # Each full publication is what the deltas before it lead to.
    for manifest in filter(is_full, manifests):
        model = tf.saved_model.load(f"{tmp_path}/{manifest.number}")
        found = model.signatures["serving_default"](**models.probe())["output_0"]
        np.testing.assert_array_equal(
            found, wanted[manifest.state["iterations"]], str(manifest.number)
        )


@pytest.mark.parametrize("kind", ["fixed", "growing"])
def test_the_last_publication_is_the_end_of_an_asynchronous_training(tmp_path, kind):
    with models.Recorded(tmp_path, models.probe()) as live:
        last = train(tmp_path, kind, is_synchronous=False)
        live.wait(models.manifests(tmp_path)[-1].number)
        np.testing.assert_array_equal(live.predict(), last)
    with models.Recorded(tmp_path, models.probe()) as late:
        late.wait(models.manifests(tmp_path)[-1].number)
        np.testing.assert_array_equal(late.predict(), last)


def trained_beside_a_folder_that_hangs(folder, kind, is_synchronous):
    """The folder answers when training has got further; then training ends."""
    del is_synchronous
    with make_strategy().scope():
        model = models.make(size_of(kind), is_normalized=False)
    publisher = tfs.keras.Publisher(folder, every_n_steps=3)
    assemble, hangs, answers = publisher_module.assemble, threading.Event(), []

    def hanging(*args):
        hangs.set()
        waiting.until(lambda: answers)
        assemble(*args)

    class Answers(tf.keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += hangs.is_set()
            if self.steps > STEPS:
                answers.append(self.steps)
                self.model.stop_training = True

    with mock.patch.object(publisher_module, "assemble", hanging):
        tfs.keras.fit(
            model,
            data,
            epochs=1000,
            steps_per_epoch=STEPS,
            verbose=0,
            callbacks=[publisher, Answers()],
        )
    return model(models.probe()).numpy().tolist()


def test_training_goes_on_while_the_folder_hangs(tmp_path):
    function = trained_beside_a_folder_that_hangs
    last = train(tmp_path, "growing", function=function)
    updates = [x.state["iterations"] for x in models.manifests(tmp_path)]
    assert updates[1] - updates[0] >= STEPS  # nothing was begun meanwhile
    with models.Recorded(tmp_path, models.probe()) as late:
        late.wait(len(updates))
        np.testing.assert_array_equal(late.predict(), last)


def trained_beside_a_slow_savedmodel(folder, kind, is_synchronous):
    """The second SavedModel takes as long as four publications; returns the others."""
    del is_synchronous
    with make_strategy().scope():
        model = models.make(size_of(kind), is_normalized=False)
    publisher = tfs.keras.Publisher(folder, every_n_steps=3, full_every=2, keep=99)
    assemble, made = publisher_module.assemble, []

    def slow(served, number, *args):
        if len(made) == 1:
            waiting.until(lambda: models.manifests(folder)[-1].number >= number + 4)
        assemble(served, number, *args)
        made.append(number)

    with mock.patch.object(publisher_module, "assemble", slow):
        tfs.keras.fit(
            model,
            data,
            steps_per_epoch=STEPS,
            verbose=0,
            callbacks=[publisher, NotTooFast(lambda: publisher.publishing)],
        )
    return made


def test_who_follows_does_not_wait_for_a_savedmodel(tmp_path):
    function = trained_beside_a_slow_savedmodel
    made = train(tmp_path, "fixed", function=function).tolist()
    assert made[:2] == [1, 3]
    assert made[2] >= 3 + 4 + 1
    manifests = models.manifests(tmp_path)
    assert [x.number for x in filter(is_full, manifests)] == made
    assert all(map(has_delta, manifests[1:]))
