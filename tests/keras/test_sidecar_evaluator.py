"""tfs.keras.SidecarEvaluator: what it restores and writes, and when it ends.

The training takes place in a callback of the evaluator, so that nothing depends on
time.
"""

import pathlib
from typing import Any

import clusters
import keras_variants
import numpy as np
import pytest
import tensorflow as tf
from keras_sync_replicas import make_strategy

import tf_syncrep as tfs
from tf_syncrep.python.keras import sidecar_evaluator
from tf_syncrep.python.report import event_files

TABLES = {"users": 40_000, "items": 100}
WIDTH, BATCH = 8, 16


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    ids = np.stack([draw.integers(0, n, BATCH) for n in TABLES.values()], axis=1)
    return ids, draw.normal(size=(BATCH, 1)).astype(np.float32)


def make(built: bool = True, **options: Any) -> Any:
    """A model with tables that checkpoints have by rows, and smaller variables."""
    configs = {
        name: tfs.keras.FeatureConfig(
            name, tfs.keras.TableConfig(name, size, WIDTH, combiner=None)
        )
        for name, size in TABLES.items()
    }
    embedding = tfs.keras.DistributedEmbedding(configs, name="tables")
    dense = tf.keras.layers.Dense(1)

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.dense = embedding, dense

        def call(self, ids):
            vectors = self.embedding({k: ids[:, i] for i, k in enumerate(TABLES)})
            return self.dense(tf.concat([vectors[k] for k in TABLES], axis=1))

    model = Model()
    model.compile(tfs.keras.AdamAsync(0.01), "mse", metrics=["mae"], **options)
    if built:
        model(tf.constant(batch(0)[0]))
    return model


def evaluated_with_servers(folder):
    """What comes of the only checkpoint, and the devices of the tables."""
    with make_strategy().scope():
        model = make(built=False)
    (found,) = evaluator_of(folder, model, max_evaluations=1).start()
    tables = [x for x in model.trainable_variables if x.shape[-1] == WIDTH]
    return found.metrics, [keras_variants.native(table).device for table in tables]


def evaluator_of(folder, model=None, data=None, **options):
    model, data = model or make(), data or batch(100)
    return tfs.keras.SidecarEvaluator(model, data, folder, **options)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sidecar_evaluator, "_POLL_SECS", 0.01)
    monkeypatch.setattr(sidecar_evaluator, "_LINGER_SECS", 0.0)


class Training(tf.keras.callbacks.Callback):
    """A training that makes a step, and a checkpoint, after each evaluation."""

    def __init__(self, folder, checkpoints, **options):
        super().__init__()
        self.trained = make(run_eagerly=True)  # a few steps take less than a trace
        self.checkpoint = tfs.keras.Checkpoint(folder, model=self.trained, **options)
        self.checkpoints = checkpoints
        self.expected = []
        self.iterations = []
        self.go_on()

    def go_on(self):
        step = len(self.expected)
        self.trained.train_on_batch(*batch(step))
        results = self.trained.evaluate(*batch(100), verbose=0, return_dict=True)
        self.expected.append((step + 1, results))
        is_last = step + 1 == self.checkpoints
        self.checkpoint.save(wait=True, is_last=is_last)

    def on_test_end(self, logs=None):
        iterations = keras_variants.native(self.model.optimizer.iterations)
        self.iterations.append(int(iterations.numpy()))
        if len(self.expected) < self.checkpoints:
            self.go_on()


def assert_as_expected(found, expected):
    assert [x.iterations for x in found] == [step for step, _ in expected]
    for evaluation, (_, results) in zip(found, expected, strict=True):
        assert evaluation.metrics.keys() == results.keys()
        for name, value in results.items():
            assert evaluation.metrics[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("built", [pytest.param(True, marks=pytest.mark.slow), False])
def test_each_checkpoint_is_evaluated_until_the_last_of_a_training(
    tmp_path, capsys, built
):
    """Checkpoints of changes work, too, and no variable of the optimizer is made."""
    training = Training(tmp_path / "run", 5, full_every=3)
    model = make(built)
    found = evaluator_of(
        tmp_path / "run", model, callbacks=[training], log_dir=tmp_path / "logs"
    ).start()
    assert_as_expected(found, training.expected)
    assert found[-1].path == str(tmp_path / "run" / "ckpt-5")
    assert training.iterations == [1, 2, 3, 4, 5]
    assert not model.optimizer.has_slots_of(model.trainable_variables[0])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "The evaluator ends: training has ended."
    loss = found[1].metrics["loss"]
    assert lines[2].startswith(
        f"{tmp_path}/run/ckpt-2, after 2 updates: loss {loss:.6g}, mae "
    )
    (path,) = event_files.find(tmp_path / "logs" / "validation")
    written = {
        (value.tag, event.step): float(tf.make_ndarray(value.tensor))
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
        for event in [tf.compat.v1.Event.FromString(record)]
        for value in event.summary.value
    }
    assert written == pytest.approx(
        {
            (f"evaluation_{name}_vs_iterations", x.iterations): value
            for x in found
            for name, value in x.metrics.items()
        }
    )


def test_the_end_of_data_of_unknown_size_is_no_warning(tmp_path, recwarn):
    training = Training(tmp_path, 1)
    dataset = tf.data.Dataset.from_tensors(batch(100)).filter(lambda *_: True)
    found = evaluator_of(tmp_path, data=dataset).start()
    assert len(found) == 1 == len(training.expected)
    assert [x for x in recwarn if "ran out of data" in str(x.message)] == []


@pytest.mark.parametrize(
    "form", [pytest.param("dataset", marks=pytest.mark.slow), "function"]
)
def test_data_are_what_evaluate_takes(tmp_path, form):
    training = Training(tmp_path, 1)
    dataset = tf.data.Dataset.from_tensors(batch(100)).repeat()
    data = dataset if form == "dataset" else lambda context: dataset
    evaluator = evaluator_of(tmp_path, data=data, steps=2)
    assert_as_expected(evaluator.start(), training.expected)


class Ruins(tf.keras.callbacks.Callback):
    """Changes the folder after the first evaluation."""

    def __init__(self, happens):
        super().__init__()
        self.happens = happens

    def on_test_end(self, logs=None):
        happens, self.happens = self.happens, lambda: None
        happens()


def test_damaged_checkpoint_is_passed_over(tmp_path, caplog):
    """It is reported once; the next checkpoint is evaluated."""
    training = Training(tmp_path, 100, keep=100)

    def damage():
        training.go_on()
        (data,) = tmp_path.glob("ckpt-2.data-*")
        data.write_bytes(data.read_bytes()[:-1])

    evaluator = evaluator_of(tmp_path, callbacks=[Ruins(damage)], max_idle_secs=0.5)
    assert [x.iterations for x in evaluator.start()] == [1]
    assert caplog.text.count("ckpt-2 cannot be restored") == 1
    training.go_on()
    assert [x.iterations for x in evaluator.start()] == [3]


def test_folder_that_is_not_there_yet_is_waited_for(tmp_path, capsys):
    folder = tmp_path / "later"
    evaluator = evaluator_of(folder, max_idle_secs=0.05)
    assert evaluator.start() == []
    said = capsys.readouterr().out
    assert "The evaluator ends: no checkpoint has come for 0 s." in said
    training = Training(folder, 1)
    assert_as_expected(evaluator.start(), training.expected)


def test_training_begun_anew_in_an_emptied_folder_is_followed(tmp_path):
    first = Training(tmp_path, 3)
    second = []

    def begin_anew():
        for path in tmp_path.iterdir():
            path.unlink()
        second.append(Training(tmp_path, 1))

    first.go_on()
    evaluator = evaluator_of(tmp_path, callbacks=[Ruins(begin_anew)])
    assert [x.iterations for x in evaluator.start()] == [2, 1]


def fit(folder, epochs):
    model = make(run_eagerly=True)
    options = {"batch_size": BATCH, "epochs": epochs, "verbose": 0}
    checkpoint = tfs.keras.Checkpoint(folder, every_n_steps=1)
    tfs.keras.fit(model, *batch(0), callbacks=[checkpoint], **options)


def test_end_of_fit_is_the_end(tmp_path):
    fit(tmp_path, 2)
    assert [x.iterations for x in evaluator_of(tmp_path).start()] == [2]


def test_training_that_ends_on_nan_has_ended(tmp_path, capsys):
    """Its last checkpoint is passed over, and the last good one was evaluated."""
    training = Training(tmp_path, 2)

    def ruin():
        training.trained.layers[-1].kernel.assign([[float("nan")]] * 2 * WIDTH)
        training.checkpoint.save(wait=True, is_last=True)

    evaluator = evaluator_of(tmp_path, callbacks=[Ruins(ruin)], max_idle_secs=60.0)
    assert [x.iterations for x in evaluator.start()] == [1]
    assert "training has ended" in capsys.readouterr().out


def test_end_is_seen_whatever_the_clock_of_this_task_says(
    tmp_path, monkeypatch, capsys
):
    ahead = sidecar_evaluator.time.time() + 3600
    monkeypatch.setattr(sidecar_evaluator, "_BEGUN", ahead)
    training = Training(tmp_path, 2)
    evaluator = evaluator_of(tmp_path, callbacks=[training], max_idle_secs=2.0)
    assert_as_expected(evaluator.start(), training.expected)
    assert "training has ended" in capsys.readouterr().out


def test_folder_that_cannot_be_read_for_a_while_is_read_again(
    tmp_path, monkeypatch, caplog
):
    training, look = Training(tmp_path, 2), sidecar_evaluator.Directory.newest_number
    errors = [tf.errors.UnavailableError(None, None, "stale file handle")]

    def newest_number(directory):
        if errors and len(training.expected) == 2:
            raise errors.pop()
        return look(directory)

    monkeypatch.setattr(sidecar_evaluator.Directory, "newest_number", newest_number)
    evaluator = evaluator_of(tmp_path, callbacks=[training])
    assert_as_expected(evaluator.start(), training.expected)
    assert f"{tmp_path} cannot be read: stale file handle" in caplog.text


def test_no_file_stays_open_behind_it(tmp_path):
    Training(tmp_path / "run", 1)
    evaluator = evaluator_of(tmp_path / "run", log_dir=tmp_path / "logs")
    evaluator.start()
    open_files = [x.resolve() for x in pathlib.Path("/proc/self/fd").iterdir()]
    assert [x for x in open_files if x.is_relative_to(tmp_path)] == []


def test_training_that_ended_before_the_program_began_is_evaluated_and_not_the_end(
    tmp_path, monkeypatch, capsys
):
    """The same script continues from it, with more epochs."""
    fit(tmp_path, 1)
    monkeypatch.setattr(sidecar_evaluator, "_BEGUN", sidecar_evaluator.time.time())
    evaluator = evaluator_of(tmp_path, callbacks=[Ruins(lambda: fit(tmp_path, 3))])
    assert [x.iterations for x in evaluator.start()] == [1, 3]
    assert "training has ended" in capsys.readouterr().out


def test_fit_that_goes_on_after_the_end_of_another_is_followed(tmp_path, monkeypatch):
    """The folder tells of a training, even before its first checkpoint."""
    fit(tmp_path, 1)
    asked = []
    progress = sidecar_evaluator.Directory.progress

    def goes_on(directory):
        asked.append(progress(directory))
        if len(asked) == 1:
            return {"time": sidecar_evaluator.time.time()}
        if len(asked) == 2:
            fit(tmp_path, 2)
        return progress(directory)

    evaluator = evaluator_of(tmp_path)
    monkeypatch.setattr(sidecar_evaluator.Directory, "progress", goes_on)
    assert [x.iterations for x in evaluator.start()] == [1, 2]
    assert len(asked) > 2


def test_scalars_that_cannot_be_written_end_nothing(tmp_path, caplog):
    (tmp_path / "file").touch()
    training = Training(tmp_path / "run", 1)
    evaluator = evaluator_of(tmp_path / "run", log_dir=tmp_path / "file")
    assert_as_expected(evaluator.start(), training.expected)
    assert "Scalars were not written to" in caplog.text


def test_other_model_is_an_error_that_names_what_is_missing(tmp_path):
    Training(tmp_path, 1)
    model = keras_variants.small_model()
    model.compile(loss="mse")
    evaluator = evaluator_of(tmp_path, model, keras_variants.small_data())
    message = "ckpt-1 does not have .*dense.*another model"
    with pytest.raises(ValueError, match=message):
        evaluator.start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "`steps` must be a whole number of at least 1"),
        ({"max_evaluations": 0}, "`max_evaluations` must be a whole number of at"),
        ({"max_idle_secs": 0}, "`max_idle_secs` must be a finite number above 0"),
        ({"checkpoint_dir": ""}, "`checkpoint_dir` must be the path of a folder"),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path, arguments, message):
    given = {"checkpoint_dir": tmp_path, **arguments}
    with pytest.raises(ValueError, match=message):
        tfs.keras.SidecarEvaluator(make(), batch(0), **given)


@pytest.mark.one_version
def test_evaluator_with_parameter_servers_of_its_own_reads_tables_onto_them(tmp_path):
    """For tables that no process can hold, from a training with other servers."""
    training = Training(tmp_path, 1)
    metrics, devices = clusters.call(evaluated_with_servers, str(tmp_path), num_ps=3)
    ((_, expected),) = training.expected
    assert metrics == pytest.approx(expected, rel=1e-5)
    assert len(set(devices)) == 3
