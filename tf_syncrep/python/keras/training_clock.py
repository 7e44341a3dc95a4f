"""The time in which a model trains, without what interrupts its training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

# A callback's hook that takes this long interrupts training, as one that writes a
# checkpoint does. During a shorter one the workers are busy with the steps ahead.
_INTERRUPTION_SECS = 1.0
# Under which name a model keeps its clock.
_CLOCK = "_tf_syncrep_clock"


class TrainingClock:
    """Counts from the beginning of an epoch to the end of its last step.

    The time between epochs, validation, and hooks that interrupt training do not count.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        """Stands at 0.

        Args:
            now: the clock, in seconds.
        """
        self._now = now
        self._earlier_secs = 0.0
        self._start = self._last = now()
        self._is_in_hook = False

    @property
    def secs(self) -> float:
        """Seconds of the epoch so far."""
        return self._last - self._start

    @property
    def total_secs(self) -> float:
        """Seconds of all epochs so far."""
        return self._earlier_secs + self.secs

    def start(self) -> None:
        """Begins an epoch; to do so twice is harmless."""
        self._earlier_secs += self.secs
        self._start = self._last = self._now()

    def note_step(self) -> None:
        """Notes that a step has ended."""
        if not self._is_in_hook:
            self._last = self._now()

    @contextlib.contextmanager
    def hook(self) -> Iterator[None]:
        """What is done between two steps: the first has ended when it begins."""
        self.note_step()
        self._is_in_hook = True
        try:
            yield
        finally:
            self._is_in_hook = False
            secs = self._now() - self._last
            if secs >= _INTERRUPTION_SECS:
                self._start += secs
                self._last += secs


def clock_of(model: Any) -> TrainingClock:
    """The clock of a model, which whoever trains and whoever reports share."""
    # Not an attribute by assignment, which Keras would track.
    return vars(model).setdefault(_CLOCK, TrainingClock())
