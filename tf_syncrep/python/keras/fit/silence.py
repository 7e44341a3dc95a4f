"""Says in the log that no step has ended for long, and who may be waited for."""

from __future__ import annotations

from collections.abc import Callable

from absl import logging

# The log says so after this time, and each time after twice as long.
FIRST_SECS = 60.0


class Silence:
    """Adds up how long results of executions have been waited for in vain."""

    def __init__(self, answers: Callable[[], str]):
        """Begins a silence.

        `answers`: returns a sentence that tells which tasks answer. It may take some
        seconds, and is called only when the log says something.
        """
        self._answers = answers
        self.end()

    def end(self) -> None:
        """Takes note that a result has come."""
        self._secs = 0.0
        self._told_at = FIRST_SECS

    def add(self, secs: float) -> None:
        """Takes note that none has come while it was waited for so many seconds."""
        self._secs += secs
        if self._secs < self._told_at:
            return
        self._told_at = 2 * self._secs
        sentences = [
            f"fit: no step has ended for {self._secs:.0f} s.",
            self._answers(),
            "First steps wait until functions are compiled and data are there, and "
            "later ones for data, for a task that hangs, or for another worker, which "
            "`stats()` of SyncReplicas names.",
        ]
        logging.warning("%s", " ".join(filter(None, sentences)))
