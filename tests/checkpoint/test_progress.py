"""How far a training got: the notes cover it at any time, and there are few."""

import copy
import threading

import pytest
import tensorflow as tf
from output_lines import DEADLINE_SECS
from waiting import until

from tf_syncrep.python.checkpoint import progress as progress_lib
from tf_syncrep.python.checkpoint.directory import Directory, Manifest
from tf_syncrep.python.checkpoint.progress import Progress

SAVED = 10


def lost(path):
    manifest = Manifest(1, "token", (1,), 0.0, {}, {})
    said = Progress(Directory(path)).lost_since(manifest, SAVED)
    return said.split(",")[0].removesuffix(" are lost")


@pytest.mark.parametrize("every_secs", [0.0, 1e9])
def test_no_step_is_lost_that_was_not_told(tmp_path, monkeypatch, every_secs):
    monkeypatch.setattr(progress_lib, "_NOTE_SECS", every_secs)
    directory = Directory(tmp_path)
    notes, note = [], directory.note_progress
    monkeypatch.setattr(directory, "note_progress", lambda x: notes.append(note(x)))
    progress = Progress(directory)
    progress.begin(SAVED)
    until(lambda: lost(tmp_path) == "at most 1 steps")
    for step in range(SAVED + 1, 1000):
        # The program may die here, before the note.
        until(lambda n=step: directory.progress().get("steps", 0) >= n, poll_secs=0.001)
        progress.note(step)
    assert len(notes) < 12 or not every_secs
    progress.end(1000)
    assert lost(tmp_path) == f"at most {1000 - SAVED} steps"


def test_nothing_is_lost_of_a_training_that_has_ended(tmp_path):
    progress = Progress(Directory(tmp_path))
    progress.begin(0)
    progress.note(SAVED - 1)
    until(lambda: "at most" in lost(tmp_path))
    progress.end(SAVED)
    assert lost(tmp_path) == "nothing is lost"


def test_progress_is_copied_as_tuners_copy_callbacks(tmp_path):
    copied = copy.deepcopy(Progress(Directory(tmp_path)))
    copied.begin(SAVED)
    copied.end(SAVED + 1)
    assert lost(tmp_path) == "at most 1 steps"


@pytest.fixture(name="hanging")
def _hanging(tmp_path, monkeypatch):
    """A folder where writes hang until they are let go, as its `notes` show."""
    directory = Directory(tmp_path)
    directory.notes, directory.let_go = [], threading.Event()
    trains = threading.current_thread()

    def note(progress):
        assert threading.current_thread() is not trains
        directory.notes.append(progress["steps"])
        assert directory.let_go.wait(DEADLINE_SECS)

    monkeypatch.setattr(directory, "note_progress", note)
    monkeypatch.setattr(progress_lib, "_NOTE_SECS", 0.0)
    yield directory
    directory.let_go.set()


def test_training_does_not_wait_for_a_folder_that_hangs_and_the_newest_is_noted(
    hanging,
):
    progress = Progress(hanging)
    progress.begin(0)
    until(lambda: hanging.notes == [1])
    for step in range(1, 9):
        progress.note(step)
    assert hanging.notes == [1]
    hanging.let_go.set()
    progress.end(9)
    assert hanging.notes in ([1, 9], [1, 10, 9])


def test_training_waits_for_its_last_note_only_so_long_and_says_so(
    hanging, monkeypatch, caplog
):
    monkeypatch.setattr(progress_lib, "_LAST_NOTE_SECS", 0.1)
    progress = Progress(hanging)
    progress.end(9)
    assert f"{hanging.path} has not answered for 0.1 s" in caplog.text


def test_progress_is_read_while_another_one_replaces_it(tmp_path, monkeypatch):
    directory = Directory(tmp_path)
    directory.note_progress({"steps": 1000})
    size = tf.io.gfile.GFile.size

    def replaced(file):
        directory.note_progress({"steps": 1})
        return size(file)

    monkeypatch.setattr(tf.io.gfile.GFile, "size", replaced)
    assert directory.progress() == {"steps": 1000}
