"""Notes how far a training got, so that a later run can say what was lost."""

from __future__ import annotations

import time

from tf_syncrep.python.checkpoint.directory import Directory, Manifest

_NOTE_SECS = 2.0


class Progress:
    """Notes the number of steps in the folder of checkpoints, every few seconds.

    It notes a number that the training does not exceed before the next note: it looks
    ahead by twice the number of steps since the last note. So the note bounds what was
    lost, whenever the program ends.
    """

    def __init__(self, directory: Directory):
        """Notes nothing yet."""
        self._directory = directory
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
        """Notes that the training ends."""
        self._note(steps, ahead=0)

    def _note(self, steps: int, ahead: int) -> None:
        self._noted, self._bound = steps, steps + ahead
        self._noted_at = time.monotonic()
        self._directory.note_progress({"steps": self._bound, "time": time.time()})

    def lost_since(self, manifest: Manifest, steps: int) -> str:
        """Says how much was trained after a checkpoint, as far as that was noted."""
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
