"""Why checkpoints of a run were not written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_syncrep.python.checkpoint.directory import Directory


class Failures:
    """Counts the checkpoints of a run, and says of each failed one why it failed."""

    def __init__(
        self, directory: Directory, log: Callable[..., Any], raise_at_end: bool
    ):
        """Begins a run.

        `log`: logs an error, as `logging.error` does. `raise_at_end`: whether a run
        raises an error if its last checkpoint failed.
        """
        self._directory = directory
        self._log = log
        self._raise_at_end = raise_at_end
        self.begin_run()

    def begin_run(self) -> None:
        """Forgets the run before."""
        self._num_begun = 0
        self._errors: list[BaseException] = []

    def begin(self) -> None:
        """Counts a checkpoint."""
        self._num_begun += 1

    def note(self, error: BaseException | None) -> None:
        """Says once why a checkpoint failed.

        `error`: the error, or None if the checkpoint did not fail.
        """
        if error is not None and error not in self._errors:
            self._log("A checkpoint was not written: %s", error)
            self._errors.append(error)

    def end_without_last(self) -> None:
        """Says that no checkpoint has the end of the run.

        Raises Exception: the error of the last checkpoint, if `raise_at_end` is set.
        """
        self._log(
            "The end of this training is in no checkpoint: %d of %d were written to "
            "%s.",
            self._num_begun - len(self._errors),
            self._num_begun,
            self._directory.path,
        )
        if self._raise_at_end:
            raise self._errors[-1]
