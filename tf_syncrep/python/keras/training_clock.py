"""The time for which a model trains, without interruptions of its training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

# A callback's hook that takes this long interrupts training, for example one that
# writes a checkpoint. During a shorter one the workers are busy with the steps ahead.
_INTERRUPTION_SECS = 1.0
# The name of the attribute in which a model keeps its clock.
_CLOCK = "_tf_syncrep_clock"


class TrainingClock:
    """Measures the time from the beginning of an epoch to the end of its last step.

    The time between epochs, validation, and hooks that interrupt training do not count.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._earlier_secs = 0.0
        self._start = self._last = now()
        self._is_in_hook = False

    @property
    def secs(self) -> float:
        """The seconds of the epoch so far."""
        return self._last - self._start

    @property
    def total_secs(self) -> float:
        """The seconds of all epochs so far."""
        return self._earlier_secs + self.secs

    def start(self) -> None:
        """Begins an epoch; a second call is harmless."""
        self._earlier_secs += self.secs
        self._start = self._last = self._now()

    def note_step(self) -> None:
        """Notes that a step has ended."""
        if not self._is_in_hook:
            self._last = self._now()

    @contextlib.contextmanager
    def hook(self) -> Iterator[None]:
        """Encloses the work between two steps, after the end of the first one."""
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
    """Returns the clock of a model, shared by the training and by reports on it."""
    # Keras would track an assigned attribute.
    return vars(model).setdefault(_CLOCK, TrainingClock())
