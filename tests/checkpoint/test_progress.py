"""How far a training got: the notes cover it at any time, and there are few."""

import pytest

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
    assert lost(tmp_path) == "at most 1 steps"
    for step in range(SAVED + 1, 1000):
        # The program may die here, before the note.
        assert directory.progress()["steps"] >= step
        progress.note(step)
    assert len(notes) < 12 or not every_secs
    progress.end(1000)
    assert lost(tmp_path) == f"at most {1000 - SAVED} steps"


def test_nothing_is_lost_of_a_training_that_has_ended(tmp_path):
    progress = Progress(Directory(tmp_path))
    progress.begin(0)
    progress.note(SAVED - 1)
    assert "at most" in lost(tmp_path)
    progress.end(SAVED)
    assert lost(tmp_path) == "nothing is lost"
