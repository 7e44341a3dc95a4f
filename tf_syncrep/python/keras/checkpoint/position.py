"""Where a run of `fit` is, as `fit` counts, and where a checkpoint has it begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_syncrep.python.keras.sync_replicas.rounds import Rounds


class Position:
    """Counts the batches of one run after the other.

    Attributes:
        epoch: the present one.
        step: how many of its steps were taken.
    """

    def __init__(self):
        """Begins with nothing."""
        self.epoch = self.step = 0
        self._steps_before = 0  # this epoch, since the training began

    @property
    def num_steps(self) -> int:
        """How many steps were taken since the training began."""
        return self._steps_before + self.step

    def begin_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, which may come after any other one."""
        self._steps_before += self.step
        self.epoch, self.step = epoch, 0

    def state(self, rounds: Rounds) -> dict[str, int]:
        """What a checkpoint holds, at a moment between two updates.

        Args:
            rounds: those of the optimizer.
        """
        step = rounds.num_done(self.step) if self.step else 0
        return {"epoch": self.epoch, "step": step, "steps": self._steps_before + step}

    def restore(self, state: Mapping[str, Any], num_steps: int | None) -> None:
        """Goes to where a checkpoint was written.

        Args:
            state: as `state` returned it.
            num_steps: steps of an epoch, if known.
        """
        self.epoch, self.step = state["epoch"], state["step"]
        self._steps_before = state["steps"] - self.step
        if num_steps and self.step >= num_steps:
            self.begin_epoch(self.epoch + 1)

    def describe(self, num_epochs: int | None, num_steps: int | None) -> str:
        """Says it in the numbers that Keras shows.

        Args:
            num_epochs: of the run, if known.
            num_steps: steps of an epoch, if known.
        """
        of_steps = f" of its {num_steps}" if num_steps else ""
        epochs = num_epochs or "?"
        return f"epoch {self.epoch + 1}/{epochs} after {self.step}{of_steps} steps"
