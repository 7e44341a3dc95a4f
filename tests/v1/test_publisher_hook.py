"""PublisherHook in sessions of one process: what is published, and what is refused."""

import threading

import numpy as np
import published_models
import pytest
import tensorflow as tf
import v1_checkpoint_models as models
from combinations import thinned
from v1_published import Recorded, adam

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.directory import reader_of
from tf_syncrep.python.serving.publications import Publications
from tf_syncrep.serving import Follower

tf1 = tf.compat.v1


def train(hook, folder, until=5, use_resource=True, parts=None, sync=False, hooks=()):
    """Trains a graph to a number of a publication; returns the global step."""
    folder = Publications(folder)
    with tf.Graph().as_default():
        loss, optimizer = models.loss(use_resource, parts), adam()
        if sync:
            optimizer = tfs.train.SyncReplicasOptimizer(optimizer, 1)
            hooks = (optimizer.make_session_run_hook(True), *hooks)
        step = tf1.train.get_global_step()
        train_op = optimizer.minimize(loss, step)
        with tf1.train.MonitoredTrainingSession(hooks=[*hooks, hook]) as session:
            while folder.newest_number() < until:
                session.run(train_op)
            return session.run_step_fn(
                lambda step_context: step_context.session.run(step)
            )


# A follower answers eagerly.
@pytest.mark.eager
@thinned(
    "use_resource, parts, served_parts, sync",
    [False, True],
    [3, None],
    [2, None],
    [False, True],
)
def test_each_version_has_the_variables_of_its_step(
    tmp_path, use_resource, parts, served_parts, sync
):
    options = {"every_n_steps": 1, "full_every": 2, "keep": 99}
    hook = tfs.train.PublisherHook(
        tmp_path, lambda: models.serve(served_parts), **options
    )
    with Recorded(tmp_path) as live:
        last = train(hook, tmp_path, 5, use_resource, parts, sync)
        manifests = published_models.manifests(tmp_path)
        live.wait(manifests[-1].number)
    with Recorded(tmp_path) as late:
        late.wait(manifests[-1].number)
    assert live.follower.numbers()["fulls"] == 1
    for found in (live, late):
        # Without synchrony rows of a step that is made meanwhile may be in it.
        versions = None if sync else [manifests[-1].number]
        assert found.assert_right(parts, versions) == last
    assert sum(x.state["full"] for x in manifests) > 1
    names = {*reader_of(Publications(tmp_path).prefix(3)).get_variable_to_shape_map()}
    assert {x.split("/")[0] for x in names} <= {"table", "bias"}
    assert not [x for x in names if "Adam" in x]


def test_a_step_may_end_when_a_saved_model_is_begun(tmp_path, monkeypatch):
    hook = tfs.train.PublisherHook(
        tmp_path, models.serve, every_n_steps=1, full_every=2
    )
    begun = []
    start = threading.Thread.start

    def wait_and_start(thread):
        if thread.name == "publication":
            hook._writer.wait()
            begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", wait_and_start)
    train(hook, tmp_path)
    assert begun


@pytest.mark.eager
def test_a_training_that_goes_on_from_a_checkpoint_is_followed(tmp_path):
    folder = tmp_path / "published"
    with Recorded(folder) as live:
        for until in (3, 6):
            publisher = tfs.train.PublisherHook(folder, models.serve, every_n_steps=1)
            saver = tfs.train.CheckpointSaverHook(tmp_path / "saved", save_steps=2)
            last = train(publisher, folder, until, sync=True, hooks=[saver])
        live.wait(published_models.manifests(folder)[-1].number)
    assert live.assert_right(None) == last


@pytest.mark.eager
def test_lookup_tables_of_the_graph_that_serves_are_served(tmp_path):
    def serve():
        inputs, outputs = models.serve()
        words = tf1.placeholder(tf.string, [None])
        keys, values = tf.constant(["a", "b"]), tf.constant([1, 0], tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
        found = tf.lookup.StaticHashTable(initializer, -1).lookup(words)
        return {**inputs, "words": words}, {**outputs, "found": found}

    train(tfs.train.PublisherHook(tmp_path, serve), tmp_path, until=1)
    with Follower(tmp_path) as follower:
        follower.wait(1, published_models.DEADLINE_SECS)
        found = follower(ids=[3], words=["b", "other"])["found"]
    np.testing.assert_array_equal(found, [0, -1])


def own_ops():
    table = tf1.get_variable("table", [models.ROWS, models.WIDTH])
    ids = tf1.placeholder(tf.int64, [None])
    return {"ids": ids}, {"rows": tfs.train.embedding_lookup(table, ids)}


def with_variable(name, shape):
    def serve():
        return {"x": tf1.placeholder(tf.float32)}, {"y": tf1.get_variable(name, shape)}

    return serve


@pytest.mark.parametrize(
    ("serve", "message"),
    [
        (dict, r"must return the inputs and the outputs .* Received: \{\}"),
        (lambda: ({}, {}), "two dicts of tensors by name"),
        (with_variable("other", [2]), r"'other', float32 \[2\], which the graph does"),
        (with_variable("bias", [2]), r"float32 \[2\], .* graph has float32 \[3, 2\]"),
        (own_ops, "TensorFlow's own ops alone: .* Received: .*Syncrep>Embedding"),
    ],
)
def test_what_cannot_serve_the_graph_is_refused(tmp_path, serve, message):
    with pytest.raises(ValueError, match=message):
        train(tfs.train.PublisherHook(tmp_path, serve), tmp_path)
    assert not published_models.manifests(tmp_path)


def test_a_graph_without_a_global_step_is_refused(tmp_path):
    hook = tfs.train.PublisherHook(tmp_path, models.serve)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="needs a global"):
        hook.begin()
