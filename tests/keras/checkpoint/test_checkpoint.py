"""tfs.keras.Checkpoint in one process: arguments, custom loops, fit, and contents."""

import contextlib
import gc
import os
import pathlib
import re
import weakref

import embedding_models
import keras_variants
import numpy as np
import programs
import pytest
import tensorflow as tf
from combinations import mostly_by_night
from same import assert_same

import tf_syncrep as tfs
from tf_syncrep.python.checkpoint import engine
from tf_syncrep.python.checkpoint.directory import Directory

ROWS, WIDTH = 20_000, 16  # 1.28 MB: written by rows
BATCH, STEPS = 8, 6

OPTIMIZERS = {
    "adam_async": lambda: tfs.keras.AdamAsync(0.01),
    "adam": lambda: tf.keras.optimizers.Adam(0.01),
    "momentum": lambda: tf.keras.optimizers.SGD(0.01, momentum=0.9),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.01),
    "averaged": lambda: tf.keras.optimizers.Adam(0.01, use_ema=True, weight_decay=0.1),
    "rowwise_adagrad": lambda: tfs.keras.RowwiseAdagrad(0.01),
    "lazy_adagrad": lambda: tfs.keras.Adagrad(0.01),
    "lazy_ftrl": lambda: tfs.keras.FTRL(0.01),
    "lazy_momentum": lambda: tfs.keras.SGD(0.01, momentum=0.9),
}


@pytest.fixture(autouse=True)
def generators():
    """Makes layers of Keras 2 draw from generators, which they do not by default."""
    if keras_variants.IS_KERAS_3:
        yield
    else:
        tf.keras.backend.experimental.enable_tf_random_generator()
        yield
        tf.keras.backend.experimental.disable_tf_random_generator()


def make(optimizer="adam_async", rows=ROWS):
    """A model whose steps draw numbers: two layers of Dropout, one without a seed."""
    layers = tf.keras.layers
    inputs = layers.Input([3], dtype="int64")
    words = layers.Flatten()(layers.Embedding(rows, WIDTH)(inputs))
    hidden = layers.Dense(64, activation="relu")(layers.Dropout(0.5)(words))
    outputs = layers.Dense(1)(layers.Dropout(0.25, seed=7)(hidden))
    model = tf.keras.Model(inputs, outputs)
    model.compile(OPTIMIZERS[optimizer](), loss="mse")
    return model


def batches(first, last):
    """The same batches in each training."""
    for step in range(first, last):
        draw = np.random.default_rng(step)
        ids = draw.integers(0, ROWS, (BATCH, 3))
        yield ids, draw.normal(size=(BATCH, 1)).astype(np.float32)


def train(model, first, last):
    """Makes these steps; returns the loss of each, and the weights after them."""
    losses = [float(model.train_on_batch(*batch)) for batch in batches(first, last)]
    return losses, model.get_weights()


@pytest.mark.parametrize(
    "optimizer",
    mostly_by_night(OPTIMIZERS, "adam_async", "averaged", "rowwise_adagrad"),
)
def test_custom_loop_goes_on_bit_for_bit(tmp_path, optimizer):
    """This needs the states of random generators, too."""
    model = make(optimizer)
    checkpoint = tfs.keras.Checkpoint(tmp_path, model=model)
    assert checkpoint.restore() is None
    train(model, 0, STEPS)
    saving = checkpoint.save({"step": STEPS})
    assert saving.is_over
    expected = train(model, STEPS, 2 * STEPS)
    for other in (make(optimizer), model):
        again = tfs.keras.Checkpoint(tmp_path, model=other)
        restored = again.restore()
        assert restored.state == {"step": STEPS}
        assert restored.iterations == STEPS
        assert restored.path == str(tmp_path / "ckpt-1")
        assert_same(train(other, STEPS, 2 * STEPS), expected)


def test_tensorflow_lists_what_the_documentation_names(tmp_path):
    model = make()
    train(model, 0, 1)
    tfs.keras.Checkpoint(tmp_path, model=model).save()
    path = tf.train.latest_checkpoint(tmp_path)
    listed = dict(tf.train.list_variables(path))
    of_layers = {
        "variables/embedding/embeddings": [ROWS, WIDTH],
        "variables/dense/kernel": [3 * WIDTH, 64],
        "variables/dense/bias": [64],
        "variables/dense_1/kernel": [64, 1],
        "variables/dense_1/bias": [1],
    }
    for name, shape in of_layers.items():
        for slot in ("", "slots/m/", "slots/v/"):
            assert listed.pop(slot + name) == shape
    assert listed.pop("optimizer/iteration") == []
    assert listed.pop("optimizer/learning_rate") == []
    # The others are states of generators, and powers of betas.
    generators = [x for x in listed if re.search("seed_generator|random_generator", x)]
    assert len(generators) == 2
    assert {x.split("/")[0] for x in set(listed) - set(generators)} == {"slots"}
    reader = tf.train.load_checkpoint(path)
    table = reader.get_tensor("variables/embedding/embeddings")
    np.testing.assert_array_equal(table, model.get_weights()[0])


def test_fit_goes_on_with_the_epoch_after_the_one_that_was_saved(tmp_path):
    def fit(epochs, folder):
        tf.keras.utils.set_random_seed(1)
        model = make()
        data = tf.data.Dataset.from_generator(
            lambda: batches(0, STEPS),
            output_signature=(
                tf.TensorSpec([BATCH, 3], tf.int64),
                tf.TensorSpec([BATCH, 1], tf.float32),
            ),
        )
        checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=4, full_every=2)
        history = tfs.keras.fit(
            model,
            data.repeat(),
            epochs=epochs,
            steps_per_epoch=STEPS,
            verbose=0,
            callbacks=[checkpoint],
        )
        return history.epoch, model.get_weights()

    _, expected = fit(3, tmp_path / "at once")
    assert fit(2, tmp_path / "twice")[0] == [0, 1]
    epochs, weights = fit(3, tmp_path / "twice")
    assert epochs == [2]
    assert_same(weights, expected)


def test_two_checkpoints_of_one_training_are_of_one_moment_each(tmp_path):
    """Also where each compares rows with those that it wrote itself."""
    states = {}

    def state_of(model):
        slots = [model.optimizer.slots(v)[k] for v in model.weights[:1] for k in "mv"]
        return [*model.get_weights(), *map(np.asarray, slots)]

    class Note(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            states[batch + 1] = state_of(self.model)

    model = make()
    checkpoints = [
        tfs.keras.Checkpoint(tmp_path / f"{n}", every_n_steps=n, full_every=2, keep=9)
        for n in (2, 3)
    ]
    data = (np.concatenate(x) for x in zip(*batches(0, STEPS), strict=True))
    callbacks = [Note(), *checkpoints]
    tfs.keras.fit(
        model, *data, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks
    )
    for n, moments in [(2, [2, 4, 6, 6]), (3, [3, 6, 6])]:
        folder = tmp_path / f"{n}"
        lengths = [len(x.chain) for x in Directory(folder).manifests()]
        assert lengths == [1, 2, 1, 2][: len(moments)]
        for number, moment in reversed([*enumerate(moments, 1)]):
            other = make()
            restored = tfs.keras.Checkpoint(folder, model=other).restore()
            assert restored.path == str(folder / f"ckpt-{number}")
            assert restored.iterations == moment
            assert_same(state_of(other), states[moment])
            (folder / f"ckpt-{number}.json").unlink()  # The one before is the last now.


AS_COUNT = "a whole number of at least 1"
AS_POSITIVE = "a finite number above 0"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        *(("every_secs", x, AS_POSITIVE) for x in (0, -1, float("nan"), "1")),
        *(("every_n_steps", x, AS_COUNT) for x in (0, -2, 1.5)),
        ("keep", None, AS_COUNT),
        ("full_every", True, AS_COUNT),
        ("max_kept_bytes", 0, AS_COUNT),
        ("max_bytes_per_sec", float("nan"), AS_POSITIVE),
        *(("directory", x, "the path of a folder") for x in (None, "")),
    ],
)
def test_bad_arguments_are_named(tmp_path, name, value, rule):
    message = f"`{name}` must be {rule}. Received: {name}={value!r}"
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        tfs.keras.Checkpoint(**{"directory": tmp_path, name: value})
    assert os.listdir(tmp_path) == []


def test_two_intervals_are_refused(tmp_path):
    message = (
        "`every_secs` and `every_n_steps` must not both be given. Received: "
        "every_secs=60, every_n_steps=10"
    )
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        tfs.keras.Checkpoint(tmp_path, every_secs=60, every_n_steps=10)


def test_folders_that_cannot_be_are_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    message = f"`directory` must be a folder. Received: directory='{file}', which is"
    with pytest.raises(ValueError, match=re.escape(message)):
        tfs.keras.Checkpoint(file)
    message = "TensorFlow knows. Received: directory='nowhere://folder'"
    with pytest.raises(ValueError, match=re.escape(message)):
        tfs.keras.Checkpoint("nowhere://folder")


def test_fit_does_not_begin_where_no_checkpoint_could_be_written():
    folder = "/proc/checkpoints"
    model = make()
    before = model.get_weights()
    message = (
        "`directory` must be a folder that can be written to. Received: directory="
    )
    with pytest.raises(ValueError, match=re.escape(f"{message}'{folder}'")):
        tfs.keras.fit(
            model,
            *next(batches(0, 1)),
            verbose=0,
            callbacks=[tfs.keras.Checkpoint(folder)],
        )
    assert_same(model.get_weights(), before)


@pytest.mark.parametrize("raise_at_end", [False, True])
def test_training_ends_without_a_folder_that_is_lost_in_its_midst(
    tmp_path, caplog, raise_at_end
):
    folder = tmp_path / "checkpoints"

    class Lose(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                checkpoint.saving.wait()
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()
                folder.write_text("no folder")

    model = make()
    ids, targets = (np.concatenate(x) for x in zip(*batches(0, STEPS), strict=True))
    checkpoint = tfs.keras.Checkpoint(
        folder, every_n_steps=2, raise_at_end=raise_at_end
    )
    raises = pytest.raises(tf.errors.OpError, match=str(folder))
    with raises if raise_at_end else contextlib.nullcontext():
        tfs.keras.fit(
            model,
            ids,
            targets,
            batch_size=BATCH,
            verbose=0,
            callbacks=[checkpoint, Lose()],
        )
    assert model.history.epoch == [0]
    assert "The end of this training is in no checkpoint: 2 of 4 " in caplog.text
    assert "A checkpoint was not written" in caplog.text
    assert str(folder) in caplog.text


def test_fit_goes_on_while_another_checkpoint_is_written_to_its_folder(
    tmp_path, caplog
):
    class Other(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            writing = engine._being_written
            (writing.add if batch == 0 else writing.discard)(str(tmp_path))

    model = make()
    ids, targets = (np.concatenate(x) for x in zip(*batches(0, STEPS), strict=True))
    checkpoint = tfs.keras.Checkpoint(tmp_path, every_n_steps=1)
    callbacks = [Other(), checkpoint]
    tfs.keras.fit(model, ids, targets, batch_size=BATCH, verbose=0, callbacks=callbacks)
    assert caplog.text.count("A checkpoint was not written: Two checkpoints") == 1
    assert checkpoint.saving.wait().number == STEPS  # the last one is that of the end


def test_relative_folder_is_that_of_the_directory_at_the_time(tmp_path, monkeypatch):
    """Programs change the working directory; Hydra does, for example."""
    monkeypatch.chdir(tmp_path)
    checkpoint = tfs.keras.Checkpoint("run", model=make())
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    checkpoint.save()
    assert (tmp_path / "run" / "ckpt-1.json").exists()
    assert os.listdir() == []


def test_models_that_cannot_be_saved_are_refused(tmp_path):
    with pytest.raises(ValueError, match="needs a model"):
        tfs.keras.Checkpoint(tmp_path).save()
    model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
    checkpoint = tfs.keras.Checkpoint(tmp_path, model=model)
    for call in (checkpoint.save, checkpoint.restore):
        with pytest.raises(ValueError, match="compiled with the optimizer"):
            call()


def test_optimizer_that_was_saved_stays_so_that_no_other_gets_its_address(tmp_path):
    model = keras_variants.small_model()
    model.compile("sgd", loss="mse")
    checkpoint = tfs.keras.Checkpoint(tmp_path, model=model)
    checkpoint.save()
    saved = weakref.ref(model.optimizer)
    model.compile("sgd", loss="mse")
    gc.collect()
    assert saved() is not None


def test_checkpoint_of_another_optimizer_changes_nothing(tmp_path):
    tfs.keras.Checkpoint(tmp_path, model=make("momentum")).save()
    model = make("adam")
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"does not have .*slots/"):
        tfs.keras.Checkpoint(tmp_path, model=model).restore()
    assert_same(model.get_weights(), before)


@pytest.mark.parametrize(
    ("rows", "has"),
    [
        (ROWS, f"a table of {ROWS + 1} rows of float[{WIDTH}]"),
        (9, f"float[10,{WIDTH}]"),  # too small to be written by rows
    ],
)
def test_checkpoint_of_another_size_is_named_and_changes_nothing(tmp_path, rows, has):
    tfs.keras.Checkpoint(tmp_path, model=make(rows=rows)).save()
    model = make(rows=rows + 1)
    before = model.get_weights()
    message = (
        f"Checkpoint {tmp_path}/ckpt-1 does not fit the model: "
        f"variables/embedding/embeddings is float[{rows},{WIDTH}] in the checkpoint, "
        f"where the model has {has}"
    )
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        tfs.keras.Checkpoint(tmp_path, model=model).restore()
    assert_same(model.get_weights(), before)


def mirrored_before_and_after(folder):
    """All copies of all variables of two replicas, and of those that were restored."""
    keras_variants.make_two_cpus()
    models, variables = [], []
    for _ in range(2):
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = embedding_models.Distributed()
            model.compile(tf.keras.optimizers.Adam(0.1), loss="mse")
            model(embedding_models.batch(2)[0])
        models.append(model)
        checkpoint = tfs.keras.Checkpoint(folder, model=model)
        if len(models) == 1:
            batches = tf.data.Dataset.from_tensor_slices(embedding_models.batch(16))
            tfs.keras.fit(model, batches.batch(8), verbose=0)
            checkpoint.save()
        else:
            checkpoint.restore()
    for model in models:
        natives = map(keras_variants.native, keras_variants.all_variables(model))
        copies = [getattr(x, "values", [x]) for x in natives]
        variables.append([x.numpy().tolist() for some in copies for x in some])
    return variables


def test_all_copies_of_mirrored_variables_are_restored(tmp_path):
    expected, found = programs.call(mirrored_before_and_after, str(tmp_path))
    assert len(expected) > 10
    assert found == expected


def test_a_folder_of_another_file_system(tmp_path):
    folder = f"ram://{pathlib.Path(tmp_path).name}/checkpoints"
    model = make()
    checkpoint = tfs.keras.Checkpoint(folder, full_every=2, keep=1, model=model)
    for step in range(3):
        train(model, step, step + 1)
        checkpoint.save({"step": step})
    other = make()
    assert tfs.keras.Checkpoint(folder, model=other).restore().state == {"step": 2}
    assert_same(other.get_weights(), model.get_weights())


def test_what_cannot_be_saved_beside_the_model_is_refused(tmp_path):
    checkpoint = tfs.keras.Checkpoint(tmp_path, model=make())
    with pytest.raises(
        ValueError, match=r"`state` must be a value that JSON can hold.*\{'a': array"
    ):
        checkpoint.save({"a": np.zeros(3)})
    assert os.listdir(tmp_path) == []
    message = re.escape("`work_queues` must be WorkQueues by name. Received: ")
    for queues in ({"a": 3}, {1: tfs.data.WorkQueue(3)}, [tfs.data.WorkQueue(3)]):
        with pytest.raises(ValueError, match=message):
            tfs.keras.Checkpoint(tmp_path, work_queues=queues)
        with pytest.raises(ValueError, match=message):
            tfs.train.CheckpointSaverHook(tmp_path, work_queues=queues)
    queue = tfs.data.WorkQueue(3)
    tfs.keras.Checkpoint(tmp_path, model=make(), work_queues={"a": queue}).save()
    other = tfs.keras.Checkpoint(tmp_path, model=make(), work_queues={"b": queue})
    with pytest.raises(ValueError, match=r"`work_queues` .* 1: \['a'\]. Received: 'b'"):
        other.restore()


@pytest.mark.parametrize(
    ("name", "is_trained", "number"),
    [("kernel", True, 1), ("kernel", False, 2), ("moving_mean", True, 2)],
)
def test_checkpoint_whose_trained_weights_are_not_finite_is_passed_over(
    tmp_path, name, is_trained, number
):
    """What is not trained may be infinite, as the least value seen so far."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input([2]), layers.Dense(2), layers.BatchNormalization()]
    )
    model.layers[0].trainable = is_trained
    model.compile(tf.keras.optimizers.SGD(0.01), loss="mse")
    checkpoint = tfs.keras.Checkpoint(tmp_path, model=model)
    checkpoint.save()
    (variable,) = (x for x in model.weights if name in x.name)
    variable.assign(np.inf * np.ones(variable.shape))
    checkpoint.save()
    assert checkpoint.restore().path == str(tmp_path / f"ckpt-{number}")


@pytest.mark.parametrize("kind", ["stock", "fixed", "growing"])
def test_checkpoint_with_a_row_of_nan_in_a_large_table_is_passed_over(tmp_path, kind):
    layers, number = tf.keras.layers, 100_000
    embedding = layers.Embedding if kind == "stock" else tfs.keras.Embedding
    size = tfs.keras.Dynamic(number) if kind == "growing" else number
    ids = np.arange(64, dtype=np.int64)[:, None]
    one, other = tf.keras.Input([1], dtype="int64"), tf.keras.Input([1], dtype="int64")
    table = embedding(size, 8)
    model = tf.keras.Model(
        [one, other], layers.Dot(2)([table(one), embedding(size, 8)(other)])
    )
    model.compile(tfs.keras.Adagrad(0.01), loss="mse")
    model.fit([ids, ids], np.ones([64, 1, 1]), verbose=0)
    checkpoint = tfs.keras.Checkpoint(tmp_path, model=model, keep=2)
    checkpoint.save()
    vectors = keras_variants.native(table.weights[0])
    row = vectors[int(np.argmax(np.abs(vectors.numpy()).sum(axis=1)))]
    row.assign(tf.fill([8], np.float32(np.nan)))
    for _ in range(3):
        checkpoint.save()
    assert checkpoint.restore().path == str(tmp_path / "ckpt-1")


def test_model_without_weights_yet_is_not_taken_for_restored(tmp_path):
    def unbuilt():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile(tfs.keras.AdamAsync(0.01), loss="mse")
        return tfs.keras.Checkpoint(tmp_path, model=model), model

    checkpoint, model = unbuilt()
    assert checkpoint.restore() is None
    with pytest.raises(ValueError, match="model that is built"):
        checkpoint.save()
    ones = np.ones([4, 2], np.float32)
    model.train_on_batch(ones, ones[:, :1])
    checkpoint.save()
    checkpoint, model = unbuilt()
    with pytest.raises(ValueError, match="model that is built"):
        checkpoint.restore()


def test_model_of_layers_without_a_call_is_saved_and_restored(tmp_path):
    """Keras never marks such a model as built."""

    class Pair(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(1)
            self.dense.build([None, 2])

    model, other = Pair(), Pair()
    for each in (model, other):
        each.compile(tf.keras.optimizers.SGD(0.1), loss="mse")
    tfs.keras.Checkpoint(tmp_path, model=model).save()
    tfs.keras.Checkpoint(tmp_path, model=other).restore()
    assert_same(other.get_weights(), model.get_weights())
