"""How far a training got, noted so that whoever goes on can say what was lost."""

from __future__ import annotations

import math
import time

from tf_syncrep.python.checkpoint.directory import Directory, Manifest

_NOTE_SECS = 2.0


class Progress:
    """Notes the number of updates, every few seconds, in the folder of checkpoints."""

    def __init__(self, directory: Directory):
        """Notes nothing yet.

        Args:
            directory: the folder.
        """
        self._directory = directory
        self._noted = -math.inf

    def note(self, updates: int, at_once: bool = False) -> None:
        """Notes how many there are, if that is some time ago.

        Args:
            updates: the optimizer's updates since the training began.
            at_once: notes it in any case.
        """
        now = time.monotonic()
        if at_once or now - self._noted >= _NOTE_SECS:
            self._noted = now
            self._directory.note_progress({"iterations": updates, "time": time.time()})

    def lost_since(self, manifest: Manifest, updates: int) -> str:
        """What was trained after a checkpoint, as far as that was noted.

        Args:
            manifest: of the checkpoint.
            updates: how many there were then.

        Returns:
            The end of a sentence.
        """
        noted = self._directory.progress()
        try:
            lost = int(noted["iterations"]) - updates
            secs = float(noted["time"]) - manifest.time
        except (KeyError, TypeError, ValueError):
            return f"it is {max(0.0, time.time() - manifest.time):.0f} s old"
        if lost <= 0:
            return "nothing that was trained is lost"
        return f"{lost} updates of {secs:.0f} s are lost"
