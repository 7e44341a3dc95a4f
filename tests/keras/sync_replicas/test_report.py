"""SyncReport: the line, the logs, the event files, and errors in these."""

import copy
import pathlib
import threading

import keras_variants
import numpy as np
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.keras.sync_replicas.report import scalars_writer, sync_report
from tf_syncrep.python.keras.training_clock import TrainingClock
from tf_syncrep.python.report import command, summary

WORKER = "/job:worker/replica:0/task:"


def worker(contributed, waited_secs, live=True):
    return {"contributed": contributed, "waited_secs": waited_secs, "live": live}


class Training:
    """An optimizer with a gate whose counters the test sets, and a clock."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        clock = TrainingClock(lambda: self.now)
        monkeypatch.setattr(sync_report, "clock_of", lambda _: clock)
        self.observers = []
        self.counters = {
            "step": 10,
            "updates": 4,
            "applied": 12,
            "late": 1,
            "stale": 0,
            "rejected": 0,
            "voided": 0,
            "workers": {f"{WORKER}0": worker(7, 5.0)},
        }
        self.model = keras_variants.small_model()
        optimizer = tfs.keras.SyncReplicas("sgd", 2)
        self.model.compile(optimizer, "mse")
        monkeypatch.setattr(optimizer, "stats", lambda: copy.deepcopy(self.counters))
        monkeypatch.setattr(optimizer, "add_observer", self.observers.append)
        monkeypatch.setattr(optimizer, "remove_observer", self.observers.remove)

    def report(self, **options):
        report = tfs.keras.SyncReport(**options)
        report.set_model(self.model)
        report.on_train_begin()
        report.on_epoch_begin(0)
        return report

    def go_on(self):
        self.counters |= {"step": 16, "updates": 10, "applied": 30, "late": 3}
        self.counters["voided"] = 2
        self.counters["workers"] |= {
            f"{WORKER}0": worker(16, 5.5),
            f"{WORKER}1": worker(9, 2.0),
            f"{WORKER}2": worker(1, 0.0, live=False),
        }


@pytest.fixture
def training(monkeypatch):
    return Training(monkeypatch)


def scalars_in(folder):
    """Values by tag and step."""
    found = {}
    for path in pathlib.Path(folder).glob("*tfevents*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
                assert value.metadata.plugin_data.plugin_name == "scalars"
    return found


def test_line_is_about_the_epoch_and_its_rate_about_the_time_of_training(
    training, capsys
):
    report = training.report()
    training.go_on()
    training.now = 3.0
    report.on_train_batch_end(8)
    training.now = 100.0  # validation, and a checkpoint
    report.on_epoch_end(0, {})
    assert capsys.readouterr().out == ""  # the progress bar has not ended its line yet
    report.on_train_end()
    assert capsys.readouterr().out == (
        "SyncReplicas: 6 updates (2.0/s) of 18 gradients; dropped 2 late, 0 stale, "
        "0 rejected, 2 void; slowest worker:0 (waited 0.5 s)\n"
    )


def test_line_of_a_single_worker_names_no_slowest(training, capsys):
    report = training.report()
    report.on_epoch_end(0, None)
    report.on_epoch_begin(1)
    assert capsys.readouterr().out.endswith("0 void\n")


def test_logs_get_the_counters(training):
    report = training.report(verbose=0)
    training.go_on()
    logs = {"loss": 0.5}
    report.on_epoch_end(0, logs)
    assert logs == {
        "loss": 0.5,
        "sync/updates": 10.0,
        "sync/late": 3.0,
        "sync/stale": 0.0,
        "sync/voided": 2.0,
        "sync/waited_secs": 7.5,
    }


def test_event_files_have_the_counters_by_update_and_the_epochs_logs(
    training, tmp_path, monkeypatch
):
    written = threading.Event()
    write_next = scalars_writer.ScalarsWriter._write_next

    def tell(self, writer):
        result = write_next(self, writer)
        written.set()
        return result

    monkeypatch.setattr(scalars_writer.ScalarsWriter, "_write_next", tell)
    report = training.report(log_dir=str(tmp_path), every_n_updates=5, verbose=0)
    (observer,) = training.observers
    observer(9)
    observer(10)
    assert written.wait(timeout=20)
    training.go_on()
    training.now = 2.5
    report.on_train_batch_end(3)
    # F1Score(average=None) has a number for each class; a name is no number.
    report.on_epoch_end(0, {"loss": 0.5, "f1": tf.constant([0.25, 0.75]), "x": "y"})
    training.counters["step"] = 17
    report.on_train_end()
    assert training.observers == []
    scalars = scalars_in(tmp_path)
    assert {step for _, step in scalars} == {10, 16, 17}
    assert scalars["sync/updates", 10] == 4
    assert scalars["sync/contributed/worker:0", 10] == 7
    assert scalars["sync/waited_secs/worker:1", 16] == 2
    assert scalars["sync/waited_secs", 16] == 7.5
    assert scalars["sync/training_secs", 16] == 2.5
    assert scalars["epoch_loss", 16] == 0.5
    assert scalars["epoch_f1/0", 16] == 0.25
    assert scalars["epoch_f1/1", 16] == 0.75


def test_nothing_is_written_without_a_folder(training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = training.report(verbose=0)
    report.on_epoch_end(0, {})
    report.on_train_end()
    assert training.observers == []
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_to_is_told_of_once(training, tmp_path, caplog):
    (tmp_path / "file").touch()
    report = training.report(log_dir=str(tmp_path / "file" / "logs"), verbose=0)
    for epoch in range(3):
        report.on_epoch_begin(epoch)
        report.on_epoch_end(epoch, {})
    report.on_train_end()
    assert caplog.text.count("Training goes on. Received: ") == 1


def test_reading_that_fails_is_told_of_once_and_the_files_go_on(
    training, tmp_path, monkeypatch, caplog
):
    readings, read = [], threading.Event()

    def fail():
        readings.append("failed")
        if len(readings) == 2:
            read.set()
        raise tf.errors.UnavailableError(None, None, "the gate is busy")

    report = training.report(log_dir=str(tmp_path), every_n_updates=1, verbose=0)
    with monkeypatch.context() as patch:
        patch.setattr(report._writer, "_read_stats", fail)
        while not read.wait(timeout=0.05) and report._writer._thread.is_alive():
            training.observers[0](11)
    assert len(readings) >= 2
    report.on_epoch_end(0, {})
    report.on_train_end()
    assert ("sync/updates", 10) in scalars_in(tmp_path)
    assert caplog.text.count("reading the gate's counters failed") == 1
    assert "the gate is busy" in caplog.text
    assert "writing to" not in caplog.text


def test_file_is_closed_though_writing_fails(training, tmp_path, monkeypatch):
    closed = []

    class Full:
        def as_default(self, step):
            raise OSError("disk full")

        def close(self):
            closed.append(True)

    monkeypatch.setattr(tf.summary, "create_file_writer", lambda folder: Full())
    report = training.report(log_dir=str(tmp_path), verbose=0)
    report.on_epoch_end(0, {})
    report.on_train_end()
    assert closed == [True]


def test_disk_that_hangs_holds_up_nobody(training, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(scalars_writer, "_END_SECS", 0.1)
    goes_on = threading.Event()
    monkeypatch.setattr(
        tf.summary, "create_file_writer", lambda folder: goes_on.wait() and 1 / 0
    )
    report = training.report(log_dir=str(tmp_path), every_n_updates=1, verbose=0)
    thread = report._writer._thread
    training.observers[0](11)
    report.on_epoch_end(0, {})
    report.on_train_end()
    assert "takes more than 0.1 s" in caplog.text
    goes_on.set()
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_fit_that_an_error_has_ended_leaves_no_observer_behind(training, tmp_path):
    report = training.report(log_dir=str(tmp_path), verbose=0)
    report.on_train_begin()
    assert len(training.observers) == 1
    report.on_epoch_begin(0)
    # These are of the next one.
    others = [tfs.keras.SyncReport(log_dir=f"{tmp_path}/{i}") for i in range(2)]
    for other in others:
        other.set_model(training.model)
        other.on_train_begin()
    assert training.observers == [other._on_update for other in others]
    for other in (report, *others):
        other.on_train_end()
    assert training.observers == []


def test_other_optimizers_and_bad_arguments_are_refused(training):
    training.model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Received: a model with optimizer SGD$"):
        tfs.keras.SyncReport().set_model(training.model)
    with pytest.raises(ValueError, match=r"Received: every_n_updates=0$"):
        tfs.keras.SyncReport(every_n_updates=0)


def test_fit_in_one_process_is_reported_on(capsys):
    model = keras_variants.small_model()
    model.compile(tfs.keras.SyncReplicas("sgd", 2), "mse")
    words, targets = keras_variants.small_data(32)
    report = tfs.keras.SyncReport()
    history = model.fit(words, targets, batch_size=8, verbose=0, callbacks=[report])
    assert history.history["sync/updates"] == [2.0]
    assert capsys.readouterr().out.startswith("SyncReplicas: 2 updates (")


def test_tables_that_grow_are_in_the_files_and_in_the_report(tmp_path):
    table = tfs.keras.Embedding(tfs.keras.Dynamic(5), 2, name="ids")
    layers = [tf.keras.layers.Input((), dtype="int64"), table]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
    model.compile(tfs.keras.SyncReplicas(tfs.keras.AdamAsync(), 1), "mse")
    report = tfs.keras.SyncReport(log_dir=str(tmp_path), verbose=0)
    table(tf.constant([0, 1]), training=True)  # before this training
    for some in (range(1, 4), range(2, 9)):
        ids = np.array(some)
        # Each call writes a file of its own.
        model.fit(
            ids, ids, batch_size=len(ids), epochs=2, verbose=0, callbacks=[report]
        )
    stats = table.table_stats()["ids"]
    scalars = scalars_in(tmp_path)
    assert scalars["tables/admitted/ids", 2] == 2
    assert scalars["tables/admitted/ids", 4] == 1
    memory = sum(stats[f"{x}_bytes"] for x in ("index", "vector", "slot"))
    assert scalars["tables/bytes/ids", 4] == memory
    found, _ = command.read(str(tmp_path))
    assert [" ".join(x.split()) for x in summary.tables(found).splitlines()] == [
        "table rows in use ids without row admitted evicted refused memory",
        f"ids 5 of 5 (100 %) 8 3 0 8 {memory / 2**20:.1f} MiB",
    ]
