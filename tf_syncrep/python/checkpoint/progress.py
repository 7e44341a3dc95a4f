"""Notes how far a training got, so that a later run can say what was lost."""

from __future__ import annotations

import threading
import time
from typing import Any

from absl import logging

from tf_syncrep.python.checkpoint.directory import Directory, Manifest

_NOTE_SECS = 2.0
# How long a training that ends, or goes on, waits for a note that is being written.
_LAST_NOTE_SECS = 10.0

# Guards the notes of all trainings: tuners copy callbacks, and no lock can be copied.
_changed = threading.Condition()


class Progress:
    """Notes the number of steps in the folder of checkpoints, every few seconds.

    It notes a number that the training does not exceed before the next note: it looks
    ahead by twice the number of steps since the last note. So the note bounds what was
    lost, whenever the program ends. A thread writes the newest note: training does not
    wait for the folder, and where that is slow, notes are left out.
    """

    def __init__(self, directory: Directory):
        self._directory = directory
        self._newest: dict[str, Any] | None = None  # if it is not written yet
        self._is_writing = False
        self._noted = 0  # the last number of steps
        self._bound = 0
        self._noted_at = 0.0

    def begin(self, steps: int) -> None:
        """Notes that a training begins, even right after a checkpoint."""
        self._note(steps, ahead=1)

    def note(self, steps: int) -> None:
        """Notes the number of steps, if the last note may not cover the next step."""
        is_due = time.monotonic() - self._noted_at >= _NOTE_SECS
        if is_due or steps >= self._bound:
            self._note(steps, ahead=max(1, 2 * (steps - self._noted)))

    def end(self, steps: int) -> None:
        """Notes that the training ends, and waits a while until that is written."""
        self._note(steps, ahead=0)
        self._wait()

    def _note(self, steps: int, ahead: int) -> None:
        self._noted, self._bound = steps, steps + ahead
        self._noted_at = time.monotonic()
        with _changed:
            self._newest = {"steps": self._bound, "time": time.time()}
            if not self._is_writing:
                self._is_writing = True
                threading.Thread(
                    target=self._write, name="progress", daemon=True
                ).start()

    def _write(self) -> None:
        while True:
            with _changed:
                newest, self._newest = self._newest, None
                if newest is None:
                    self._is_writing = False
                    _changed.notify_all()
                    return
            self._directory.note_progress(newest)

    def _wait(self) -> None:
        with _changed:
            if not _changed.wait_for(lambda: not self._is_writing, _LAST_NOTE_SECS):
                logging.warning(
                    "%s has not answered for %g s, and may not say how far "
                    "training got.",
                    self._directory.path,
                    _LAST_NOTE_SECS,
                )

    def lost_since(self, manifest: Manifest, steps: int) -> str:
        """Says how much was trained after a checkpoint, as far as that was noted."""
        self._wait()
        noted = self._directory.progress()
        try:
            lost = int(noted["steps"]) - steps
            secs = float(noted["time"]) - manifest.time
        except (KeyError, TypeError, ValueError):
            return f"it is {max(0.0, time.time() - manifest.time):.0f} s old"
        if lost <= 0:
            return "nothing is lost"
        of_secs = f", of about {secs:.0f} s," if secs >= 1 else ""
        return f"at most {lost} steps{of_secs} are lost"
