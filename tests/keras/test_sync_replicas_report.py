"""What SyncReplicas says of a training: the line, the logs, and the event files."""

import copy
import pathlib

import pytest
import tensorflow as tf

from tf_syncrep.python.keras.sync_replicas.report import Report

WORKER = "/job:worker/replica:0/task:"


def worker(contributed, waited_secs, live=True):
    return {"contributed": contributed, "waited_secs": waited_secs, "live": live}


class Gate:
    """Stands in for a gate whose counters the test sets."""

    def __init__(self):
        self.stats = {
            "step": 10,
            "updates": 4,
            "applied": 12,
            "late": 1,
            "stale": 0,
            "rejected": 0,
            "voided": 0,
            "workers": {f"{WORKER}0": worker(7, 5.0)},
        }

    def read(self):
        return copy.deepcopy(self.stats)

    def go_on(self):
        self.stats |= {"step": 16, "updates": 10, "applied": 30, "late": 3, "voided": 2}
        self.stats["workers"] |= {
            f"{WORKER}0": worker(16, 5.5),
            f"{WORKER}1": worker(9, 2.0),
            f"{WORKER}2": worker(1, 0.0, live=False),
        }


@pytest.fixture
def gate():
    return Gate()


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


def test_line_is_about_the_epoch_and_names_the_live_worker_that_waited_least(gate):
    report = Report(gate.read, None, 1)
    report.start()
    gate.go_on()
    line = report.on_epoch_end({})
    assert line.startswith("SyncReplicas: 6 updates (")
    assert line.endswith(
        "/s) of 18 gradients; dropped 2 late, 0 stale, 0 rejected, 2 void; "
        "slowest worker:0 (waited 0.5 s)"
    )


def test_line_of_a_single_worker_names_no_slowest(gate):
    report = Report(gate.read, None, 1)
    report.start()
    assert report.on_epoch_end(None).endswith("0 void")


def test_logs_get_the_counters(gate):
    report = Report(gate.read, None, 1)
    report.start()
    gate.go_on()
    logs = {"loss": 0.5}
    report.on_epoch_end(logs)
    assert logs == {
        "loss": 0.5,
        "sync/updates": 10.0,
        "sync/late": 3.0,
        "sync/stale": 0.0,
        "sync/voided": 2.0,
        "sync/waited_secs": 7.5,
    }


def test_event_files_have_the_counters_by_update_and_the_epochs_logs(gate, tmp_path):
    report = Report(gate.read, str(tmp_path), 5)
    report.start()
    report.on_update(9)
    report.on_update(10)
    gate.go_on()
    report.on_epoch_end({"loss": 0.5})
    gate.stats["step"] = 17
    report.close()
    scalars = scalars_in(tmp_path)
    assert {step for _, step in scalars} == {10, 16, 17}
    assert scalars["sync/updates", 10] == 4
    assert scalars["sync/contributed/worker:0", 10] == 7
    assert scalars["sync/waited_secs/worker:1", 16] == 2
    assert scalars["sync/waited_secs", 16] == 7.5
    assert scalars["epoch_loss", 16] == 0.5


def test_nothing_is_written_without_a_folder(gate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = Report(gate.read, None, 1)
    report.start()
    report.on_update(1)
    report.on_epoch_end({})
    report.close()
    assert list(tmp_path.iterdir()) == []
