"""What is told of a training: a bar or lines, as `verbose` says, and a warning."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras.compat.native import IS_KERAS_3
from tf_syncrep.python.keras.training_clock import TrainingClock, clock_of

# How often a line reports the progress.
_EVERY_SECS = 5.0


def has_progress_bar(verbose: str | int) -> bool:
    """Returns whether to show Keras' own progress bar, or its line for an epoch.

    A bar that redraws needs a terminal, or a notebook. Elsewhere Keras would show
    nothing until an epoch has ended, and then write codes that only terminals
    understand. After `tf.keras.utils.disable_interactive_logging` the user wants Keras'
    own output in its log.
    """
    if verbose in (0, 2):
        return verbose == 2
    if not tf.keras.utils.is_interactive_logging_enabled():
        return True
    return sys.stdout.isatty() or "ipykernel" in sys.modules


class ProgressBar(tf.keras.callbacks.ProgbarLogger):
    """Keras' bar and line, with the number of batches of each epoch.

    If that is not known before, Keras takes the number of the first epoch for all.
    """

    def __init__(self):
        super().__init__(*([] if IS_KERAS_3 else ["steps"]))
        self._num_steps: int | None = None
        self._num_batches = 0

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._num_steps = params.get("steps")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._num_batches = 0
        self.target = self._num_steps
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._num_batches = batch + 1
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.target is None:
            self.target = self.progbar.target = self._num_batches
        super().on_epoch_end(epoch, logs)


class ProgressLines(tf.keras.callbacks.Callback):
    """Writes a line every few seconds, and one at the end of each epoch.

    Steps per second refer to the time of training by `TrainingClock`, which excludes
    validation, the time between epochs, and checkpoints.
    """

    # Without it, Keras 2 refuses callbacks with hooks by batch in the strategy's scope.
    _supports_tf_logs = True

    def __init__(self, now: Callable[[], float] = time.monotonic):
        super().__init__()
        self._now = now
        self._is_training = False
        self._clock = TrainingClock(now)
        self._begin("")

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_training = True
        self._clock = clock_of(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin(f"epoch {epoch + 1}/{self.params.get('epochs', '?')}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._write(logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._is_training = False
        self._clock = TrainingClock(self._now)

    def on_test_begin(self, logs: Any = None) -> None:
        if not self._is_training:
            self._begin("evaluation")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._is_training:
            self._step(batch, logs)

    def on_test_end(self, logs: Any = None) -> None:
        if not self._is_training:
            self._write(logs)

    def on_predict_begin(self, logs: Any = None) -> None:
        self._begin("prediction")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step(batch, None)

    def on_predict_end(self, logs: Any = None) -> None:
        self._write(None)

    def _begin(self, what: str) -> None:
        self._what = what
        self._steps = 0
        self._clock.start()
        self._written_at = self._now()

    def _step(self, batch: int, logs: Any) -> None:
        self._steps = batch + 1
        self._clock.note_step()
        if self._now() - self._written_at >= _EVERY_SECS:
            self._written_at = self._now()
            self._write(logs)

    def _write(self, logs: Any) -> None:
        total = self.params.get("steps")
        line = f"{self._what}: {self._steps}{f'/{total}' if total else ''} steps"
        if self._clock.secs > 0:
            line += f", {self._steps / self._clock.secs:.1f} steps/s"
        for name, value in (logs or {}).items():
            # A line has no room for vectors; SyncReport and TensorBoard show them. And
            # a callback may have put into the logs what is no number.
            with contextlib.suppress(TypeError, ValueError):
                if np.ndim(value) == 0:
                    line += f" - {name}: {float(value):.4g}"
        print(line, flush=True)


class LossWarning(tf.keras.callbacks.Callback):
    """Warns once in a training that its loss is NaN or infinite."""

    # Without it, Keras 2 refuses callbacks with hooks by batch in the strategy's scope.
    _supports_tf_logs = True

    def __init__(self):
        super().__init__()
        self._epoch = 0
        self._has_said_so = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not self._has_said_so and not np.all(np.isfinite(loss)):
            self._has_said_so = True
            logging.warning(
                "fit: the loss is %s, seen first after step %d of epoch %d. With "
                "tf.keras.callbacks.TerminateOnNaN() training would end there.",
                loss,
                batch + 1,
                self._epoch + 1,
            )
