"""A training that writes checkpoints: when, and what came of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_count, check_positive
from tf_syncrep.python.checkpoint.directory import Directory
from tf_syncrep.python.checkpoint.engine import Saving
from tf_syncrep.python.checkpoint.progress import Progress


class Run:
    """Tells when a checkpoint is due, and says of each failed one why it failed."""

    def __init__(
        self,
        directory: Directory,
        log: Callable[..., Any],
        raise_at_end: bool = False,
        what: str = "checkpoint",
        default_secs: float = 600.0,
        **interval: Any,
    ):
        """Begins with nothing.

        `log`: logs an error, as `logging.error` does. `raise_at_end`: whether
        `end_without_last` raises an error. `what`: what is written. `**interval`:
        seconds, then steps, between two checkpoints, by the names of the users'
        arguments; one may be given, and `default_secs` are the default. Raises
        ValueError: a number is out of range, or both are given.
        """
        self.progress = Progress(directory)
        self._directory = directory
        self._log = log
        self._raise_at_end = raise_at_end
        self._what = what
        (secs_name, secs), (steps_name, steps) = interval.items()
        if secs is not None:
            secs = check_positive(secs_name, secs)
        if steps is not None:
            steps = check_count(steps_name, steps)
        if secs is not None and steps is not None:
            raise ValueError(
                f"`{secs_name}` and `{steps_name}` must not both be given. Received: "
                f"{secs_name}={secs:g}, {steps_name}={steps}"
            )
        self._secs = default_secs if secs is None else secs
        self._steps = steps
        self.begin_interval(0)
        self.forget_failures()

    def forget_failures(self) -> None:
        """Begins to count those of another run of `fit`."""
        self._num_begun = 0
        self._errors: list[BaseException] = []

    def begin_interval(self, steps: int) -> None:
        """Begins the interval after which the next checkpoint is due."""
        self._begun_step: float = steps
        self._begun: float = time.monotonic()

    def make_due(self) -> None:
        """Makes the first one due at once."""
        self._begun_step = self._begun = -math.inf

    def is_due(self, steps: int) -> bool:
        """Returns whether it is time for the next checkpoint."""
        if self._steps is not None:
            return steps - self._begun_step >= self._steps
        return time.monotonic() - self._begun >= self._secs

    def note_failure(self, saving: Saving | None) -> None:
        """Says once why a checkpoint failed, if it did."""
        if saving is not None and saving.error is not None:
            self._note(saving.error)

    def try_to_save(self, save: Callable[[], Saving]) -> Saving | None:
        """Calls `save`; a failure is only logged, since training goes on."""
        self._num_begun += 1
        try:
            return save()
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            self._note(error)
            return None

    def _note(self, error: BaseException) -> None:
        if error not in self._errors:
            self._log("A %s was not written: %s", self._what, error)
            self._errors.append(error)

    def end_without_last(self) -> None:
        """Says that no checkpoint has the run's end; raises why, if `raise_at_end`."""
        self._log(
            "The end of this training is in no %s: %d of %d were written to %s.",
            self._what,
            self._num_begun - len(self._errors),
            self._num_begun,
            self._directory.path,
        )
        if self._raise_at_end:
            raise self._errors[-1]
