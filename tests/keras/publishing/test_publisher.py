"""Publications of a model that is trained in one process."""

import contextlib
import json
import os
import subprocess
import sys

import numpy as np
import published_models as models
import pytest
import tensorflow as tf
from full_disks import full_disk

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint.directory import Directory, Manifest, reader_of
from tf_syncrep.python.keras.publishing import assembly
from tf_syncrep.python.keras.publishing import publisher as publisher_module
from tf_syncrep.python.serving.publication_writer import PublicationWriter
from tf_syncrep.python.serving.publications import (
    Publications,
    Rows,
    changes,
    has_delta,
    is_full,
)
from tf_syncrep.serving import Follower

Dynamic = tfs.keras.Dynamic
MODELS = {
    "fixed": (models.SIZE, False),
    "growing": (Dynamic(models.SIZE), False),
    "strings": (Dynamic(models.SIZE), True),
    "evicting": (Dynamic(models.SIZE, unused_for=2), False),
}


def publish_versions(folder, size, strings, versions=7):
    """Trains and publishes; returns the trainer's predictions at each version."""
    model, draw = models.make(size, strings), np.random.default_rng(1)
    publisher = tfs.keras.Publisher(folder, model=model, full_every=3, keep=9)
    wanted = {}
    for version in range(1, versions + 1):
        # Later versions have other ids, so that keys come, go, and come back.
        most = models.SIZE if version % 3 else models.SIZE // 8
        for _ in range(3):
            models.train(model, draw, most, strings)
            tfs.keras.maintain_tables(model)
        publisher.publish()
        wanted[version] = model(models.probe(strings)).numpy()
    return wanted


@pytest.mark.parametrize("kind", MODELS)
def test_each_version_predicts_what_the_trainer_did(tmp_path, kind):
    size, strings = MODELS[kind]
    with models.Recorded(tmp_path, models.probe(strings)) as live:
        wanted = publish_versions(tmp_path, size, strings)
        live.wait(7)
    with models.Recorded(tmp_path, models.probe(strings)) as late:
        late.wait(7)
    assert live.follower.numbers()["fulls"] == 1
    are_full = [True, False, False, True, False, False, True]
    assert [is_full(x) for x in models.manifests(tmp_path)] == are_full
    for found in (live.predictions, late.predictions):
        assert 7 in found
        for version, prediction in found.items():
            np.testing.assert_array_equal(prediction, wanted[version], str(version))


def test_evicted_keys_are_tombstones(tmp_path):
    publish_versions(tmp_path, *MODELS["evicting"])
    folder = Publications(tmp_path)
    num_removed, num_in_place_of_others = 0, 0
    for manifest in filter(has_delta, folder.manifests()):
        reader = reader_of(folder.prefix(manifest.number))
        (rows,) = (Rows(*x) for x in manifest.state["tables"])
        for chunk in changes(reader, rows):
            num_removed += len(chunk["tombstones"])
            num_in_place_of_others += len(chunk["places"])
    assert num_removed > 0
    assert num_in_place_of_others > 0


def test_a_table_is_longer_where_keys_come(tmp_path):
    size = Dynamic(10 * models.SIZE)
    model, draw = models.make(size), np.random.default_rng(1)
    publisher = tfs.keras.Publisher(tmp_path, model=model)
    with models.Recorded(tmp_path, models.probe()) as recorded:
        for version, most in enumerate([1, 20, models.SIZE], start=1):
            for _ in range(20):
                models.train(model, draw, most)
            publisher.publish()
            recorded.wait(version)
            np.testing.assert_array_equal(
                recorded.predict(), model(models.probe()).numpy()
            )
        with recorded.follower.reading() as served:
            num_rows = served.tables_items.vectors.shape[0]
            rows = model.get_layer("items").table_stats()["items"]["rows"]
            assert tf.shape(served.tables_items.vectors)[0] == 17 * rows // 16
            assert num_rows is None


def test_large_variables_of_stock_layers_are_published_by_rows(tmp_path):
    num_ids = 2**15
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((3,), dtype="int64", name="ids"),
            tf.keras.layers.Embedding(num_ids, 8),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tfs.keras.AdamAsync(0.05), loss="mse")
    draw = np.random.default_rng(0)
    publisher = tfs.keras.Publisher(tmp_path, model=model)
    asked = tf.constant(draw.integers(0, num_ids, (50, 3)))
    with models.Recorded(tmp_path, {"ids": asked}) as recorded:
        for version in (1, 2, 3):
            model.train_on_batch(asked[:10], tf.ones([10, 1]))
            rows = publisher.publish().rows_written
            recorded.wait(version)
            wanted = model.predict_on_batch(asked)  # with a bias, in a graph
            np.testing.assert_array_equal(recorded.predict(), wanted)
    assert rows == len(np.unique(asked[:10]))


def test_nothing_is_written_of_rows_that_did_not_change(tmp_path):
    model = models.make()
    publisher = tfs.keras.Publisher(tmp_path, model=model)
    assert publisher.publish().rows_written == models.SIZE
    assert publisher.publish().rows_written == 0
    models.train(model, np.random.default_rng(0), most=5)
    assert 0 < publisher.publish().rows_written <= 5


def test_old_publications_go_when_nothing_needs_them(tmp_path):
    models.published(tmp_path, versions=6, full_every=2, keep=2)
    assert [x.number for x in models.manifests(tmp_path)] == [3, 4, 5, 6]
    assert sorted(x.name for x in tmp_path.iterdir() if x.is_dir()) == ["3", "5", "raw"]
    assert not list((tmp_path / "raw").glob("ckpt*"))


def test_rows_of_a_savedmodel_that_was_not_made_are_deleted(tmp_path, monkeypatch):
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "ckpt-1.index").write_text("left by a training that was killed")
    (raw / "others").write_text("not by this program")
    Directory(raw).commit(Manifest(1, "token", (1,), 0.0, {}, {}))
    model, draw = models.make(), np.random.default_rng(0)
    publisher = tfs.keras.Publisher(tmp_path, model=model, full_every=2)
    publisher.publish()
    assert [x.name for x in raw.iterdir()] == ["others"]

    def fail(*_):
        assert list(raw.glob("ckpt-*.index"))
        raise OSError("the disk is full")

    models.train(model, draw)
    with monkeypatch.context() as patched:
        patched.setattr(publisher_module, "assemble", fail)
        publisher.publish()
        publisher.publish()
    assert [is_full(x) for x in models.manifests(tmp_path)] == [True, False, False]
    assert [x.name for x in raw.iterdir()] == ["others"]


# Bytes that a file may have: for nothing, for some files of a delta, for a delta alone.
@pytest.mark.parametrize("most", [0, 700, 2000, 20_000])
def test_a_full_disk_leaves_the_last_one_whole(tmp_path, most):
    model, draw = models.make(Dynamic(models.SIZE)), np.random.default_rng(0)
    publisher = tfs.keras.Publisher(tmp_path, model=model, full_every=3)
    with models.Recorded(tmp_path, models.probe()) as recorded:
        wanted, failures = {}, []
        for is_full_disk in (False, True, True, True, False, False):
            models.train(model, draw)
            prediction = model(models.probe()).numpy()
            try:
                with full_disk(most) if is_full_disk else contextlib.nullcontext():
                    number = publisher.publish().manifest.number
            except (OSError, tf.errors.OpError) as error:
                failures.append(error)
            else:
                wanted[number] = prediction
                recorded.wait(number)
            last = models.manifests(tmp_path)[-1]
            assert last.number == max(wanted)
            np.testing.assert_array_equal(recorded.predict(), wanted[last.number])
        assert (len(failures) < 3) == (most == 20_000), failures
        assert recorded.follower.numbers()["failures"] == 0
    with models.Recorded(tmp_path, models.probe()) as late:
        late.wait(max(wanted))
        np.testing.assert_array_equal(late.predict(), wanted[max(wanted)])
    assert not list(tmp_path.glob("*.writing"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["fixed", "growing"])
def test_vectors_are_served_in_half_of_the_memory(tmp_path, monkeypatch, dtype, kind):
    monkeypatch.setattr(assembly, "_LEAST_BLOCK_BYTES", 64)  # files of several parts
    size, strings = MODELS[kind]
    model, draw = models.make(size, strings), np.random.default_rng(1)
    publisher = tfs.keras.Publisher(tmp_path, model=model, dtype=dtype)
    with models.Recorded(tmp_path, models.probe()) as recorded:
        for version in (1, 2):
            models.train(model, draw)
            publisher.publish()
            recorded.wait(version)
            wanted = model(models.probe()).numpy()
            error = np.abs(recorded.predict() - wanted).max()
            assert 0 < error < (3e-2 if dtype == "bfloat16" else 3e-3)
        with recorded.follower.reading() as served:
            stored = "int16" if dtype == "float16" else dtype  # of the same bits
            assert served.tables_items.vectors.dtype == stored


def test_fit_publishes_when_it_is_due_and_at_its_end(tmp_path):
    model, draw = models.make(), np.random.default_rng(0)
    inputs = models.ids(draw, 10 * models.EXAMPLES, models.SIZE, False)
    targets = draw.normal(size=(10 * models.EXAMPLES, 1))
    publisher = tfs.keras.Publisher(tmp_path, every_n_steps=4)
    model.fit(
        inputs, targets, batch_size=models.EXAMPLES, verbose=0, callbacks=[publisher]
    )
    updates = [x.state["iterations"] for x in models.manifests(tmp_path)]
    assert updates == [1, 5, 9, 10]
    with models.Recorded(tmp_path, models.probe()) as recorded:
        recorded.wait(4)
        np.testing.assert_array_equal(recorded.predict(), model(models.probe()).numpy())


def test_a_folder_that_fails_is_not_asked_at_each_step(tmp_path, monkeypatch, caplog):
    asked = []

    def fail(*_):
        asked.append(publisher._position.step)
        raise TimeoutError("no answer")

    model = models.make()
    publisher = tfs.keras.Publisher(tmp_path, every_n_steps=4)
    monkeypatch.setattr(PublicationWriter, "begin", fail)
    batch, targets = models.batch(np.random.default_rng(0))
    data = tf.data.Dataset.from_tensors((batch, targets)).repeat(10)
    model.fit(data, verbose=0, callbacks=[publisher])
    assert asked == [1, 5, 9, 10]
    assert "The end of this training is in no publication: 0 of 4" in caplog.text


def test_a_checkpoint_and_a_publication_know_nothing_of_each_other(tmp_path):
    model, draw = models.make(), np.random.default_rng(0)
    publisher = tfs.keras.Publisher(tmp_path / "published", model=model)
    checkpoint = tfs.keras.Checkpoint(tmp_path / "saved", model=model, full_every=9)
    for i in range(4):
        models.train(model, draw)
        (publisher.publish if i % 2 else checkpoint.save)()
        models.train(model, draw)
        (checkpoint.save if i % 2 else publisher.publish)()
    wanted = model(models.probe()).numpy()
    with models.Recorded(tmp_path / "published", models.probe()) as recorded:
        publisher.publish()
        recorded.wait(5)
        np.testing.assert_array_equal(recorded.predict(), wanted)
    restored = models.make()
    assert tfs.keras.Checkpoint(tmp_path / "saved", model=restored).restore()
    np.testing.assert_array_equal(restored(models.probe()).numpy(), wanted)


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = tfs.keras.Embedding(Dynamic(100), 4)
        self.dense = tf.keras.layers.Dense(1)

    def call(self, ids, training=None):
        return {"score": self.dense(self.embedding(ids, training=training))}


def test_a_subclassed_model_is_published_by_its_signature(tmp_path):
    model = Subclassed()
    model.compile(tfs.keras.AdamAsync(), loss="mse")
    model(tf.constant([1, 2]), training=True)
    signature = tf.TensorSpec([None], tf.int64, "ids")
    with pytest.raises(ValueError, match="input_signature"):
        tfs.keras.Publisher(tmp_path, model=model).publish()
    tfs.keras.Publisher(tmp_path, model=model, input_signature=signature).publish()
    with Follower(tmp_path) as follower:
        follower.wait(1, models.DEADLINE_SECS)
        np.testing.assert_array_equal(
            follower(ids=[2, 7])["score"], model(tf.constant([2, 7]))["score"]
        )


def test_lookup_tables_of_layers_are_published_with_the_model(tmp_path):
    words = tf.keras.Input((), dtype="string", name="word")
    ids = tf.keras.layers.StringLookup(vocabulary=["a", "b", "c"])(words)
    vectors = tfs.keras.Embedding(4, 3)(ids)
    model = tf.keras.Model(words, tf.keras.layers.Dense(1)(vectors))
    model.compile(tfs.keras.AdamAsync(), loss="mse")
    tfs.keras.Publisher(tmp_path, model=model).publish()
    asked = tf.constant(["c", "a", "other"])
    with models.Recorded(tmp_path, {"word": asked}) as recorded:
        recorded.wait(1)
        np.testing.assert_array_equal(recorded.predict(), model(asked).numpy())


class Foreign(tf.keras.Model):
    """A model that uses a variable of no layer."""

    def call(self, x):
        return x * FOREIGN


FOREIGN = tf.Variable(2.0)


def refused(**options):
    return tfs.keras.Publisher("folder", **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: refused(dtype="int8"), "`dtype` must be .* Received: dtype='int8'"),
        (lambda: refused(full_every=0), "`full_every` must be .* full_every=0"),
        (lambda: refused(every_secs=-1), "`every_secs` must be .* every_secs=-1"),
        (lambda: refused().publish(), "Publisher needs a model: pass it"),
        (lambda: refused(model=tf.keras.Sequential()).publish(), "is compiled with"),
        (lambda: refused(model=Subclassed()).publish(), "is compiled with"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_model_that_uses_variables_of_no_layer_is_refused(tmp_path):
    inputs = tf.keras.Input((2,), name="x")
    outer = tf.keras.layers.Dense(1)(Foreign()(inputs))
    model = tf.keras.Model(inputs, outer)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="no variables or resources but those of its"):
        tfs.keras.Publisher(tmp_path, model=model).publish()
    assert not models.manifests(tmp_path)


def of_float16(layer):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((), dtype="int64", name="ids"),
            layer,
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tfs.keras.AdamAsync(), loss="mse")
    return model


@pytest.mark.parametrize("kind", [tfs.keras.Embedding, tf.keras.layers.Embedding])
def test_tables_of_float16_of_a_fixed_size_are_refused(tmp_path, kind):
    model = of_float16(kind(2**18, 4, dtype="float16"))
    with pytest.raises(ValueError, match=r"that is trained in float16.*embeddings'"):
        tfs.keras.Publisher(tmp_path, model=model).publish()
    assert not models.manifests(tmp_path)


def test_tables_of_float16_that_grow_are_published(tmp_path):
    layer = tfs.keras.Embedding(Dynamic(9), 4, dtype="float16")
    model = of_float16(layer)
    asked = tf.constant([3, 7, 1], tf.int64)
    model.train_on_batch(asked, tf.ones([3, 1]))
    tfs.keras.Publisher(tmp_path, model=model).publish()
    with Follower(tmp_path) as follower:
        follower.wait(1, models.DEADLINE_SECS)
        (found,) = follower(ids=asked).values()
        np.testing.assert_array_equal(found, model(asked))


# TensorFlow alone: no tf_syncrep in sight.
ONLY_TENSORFLOW = """
import importlib.util, json, sys
import numpy as np
import tensorflow as tf
assert importlib.util.find_spec("tf_syncrep") is None
folder, given = sys.argv[1:]
model = tf.saved_model.load(folder)
with np.load(given, allow_pickle=False) as file:
    arrays = dict(file)
predict = model.signatures["serving_default"]
probe = {k[2:]: tf.constant(v) for k, v in arrays.items() if k.startswith("p/")}
delta = {k[2:]: tf.constant(v) for k, v in arrays.items() if k.startswith("d/")}
before = predict(**probe)["output_0"].numpy()
applied = model.signatures["apply_delta"](**delta)
after = predict(**probe)["output_0"].numpy()
try:
    model.signatures["apply_delta"](**delta)
except tf.errors.InvalidArgumentError as error:
    refused = str(error)
print(json.dumps({
    "before": before.tolist(), "after": after.tolist(), "refused": refused,
    "version": int(applied["version"]),
}))
"""


def test_a_process_with_tensorflow_alone_applies_a_delta(tmp_path):
    folder = tmp_path / "published"
    wanted = models.published(folder, versions=2)
    delta = tfs.serving.read_delta(folder, 2)
    arrays = {f"d/{name}": x for name, x in delta.items()}
    arrays |= {f"p/{name}": x.numpy() for name, x in models.probe().items()}
    np.savez(tmp_path / "given.npz", **arrays)
    # `-P` and no PYTHONPATH: the package is found by neither.
    path = os.pathsep.join(x for x in sys.path if x.endswith("site-packages"))
    alone = tmp_path / "alone"
    alone.mkdir()
    for entry in os.scandir(path.split(os.pathsep)[0]):
        if "tf_syncrep" not in entry.name:
            (alone / entry.name).symlink_to(entry.path)
    result = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            ONLY_TENSORFLOW,
            folder / "1",
            tmp_path / "given.npz",
        ],
        env={"PYTHONPATH": str(alone), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    np.testing.assert_array_equal(np.float32(found["before"]), wanted[1])
    np.testing.assert_array_equal(np.float32(found["after"]), wanted[2])
    assert found["version"] == 2
    assert "`base` must be the publication that this model is of" in found["refused"]


def test_a_delta_that_cannot_be_applied_leaves_the_version(tmp_path):
    folder = tmp_path / "published"
    models.published(folder, versions=2)
    served = tf.saved_model.load(str(folder / "1"))
    delta = tfs.serving.read_delta(folder, 2)
    (places,) = (x for x in delta if x.endswith("_places") and delta[x].size)
    delta[places] = delta[places] + 10**6  # there are no such rows
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        served.signatures["apply_delta"](
            **{x: tf.constant(y) for x, y in delta.items()}
        )
    assert served.version.numpy() == 1
