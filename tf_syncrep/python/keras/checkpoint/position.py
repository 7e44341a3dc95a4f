"""The position of a run of `fit` in its epochs, and where a restored run begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_syncrep.python.keras.sync_replicas.rounds import Rounds


class Position:
    """Counts the batches of one run after another."""

    def __init__(self):
        self.epoch = self.step = 0
        # How many steps were taken in earlier epochs since the training began.
        self._steps_before = 0

    @property
    def num_steps(self) -> int:
        """How many steps were taken since the training began."""
        return self._steps_before + self.step

    def begin_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, which may come after any other one."""
        self._steps_before += self.step
        self.epoch, self.step = epoch, 0

    def state(self, rounds: Rounds) -> dict[str, int]:
        """Returns the state that a checkpoint holds, of a moment between updates."""
        step = rounds.num_done(self.step) if self.step else 0
        return {"epoch": self.epoch, "step": step, "steps": self._steps_before + step}

    def restore(self, state: Mapping[str, Any], num_steps: int | None) -> None:
        """Goes to the position at which a checkpoint was written."""
        self.epoch, self.step = state["epoch"], state["step"]
        self._steps_before = state["steps"] - self.step
        if num_steps and self.step >= num_steps:
            self.begin_epoch(self.epoch + 1)

    def describe(self, num_epochs: int | None, num_steps: int | None) -> str:
        """Describes the position with the numbers that Keras shows."""
        of_steps = f" of its {num_steps}" if num_steps else ""
        epochs = num_epochs or "?"
        return f"epoch {self.epoch + 1}/{epochs} after {self.step}{of_steps} steps"
