"""A warning about a loss that is not finite."""

from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging


class LossWarning(tf.keras.callbacks.Callback):
    """Warns once in a training that its loss is NaN or infinite."""

    # Without it, Keras 2 refuses callbacks with hooks by batch in the strategy's scope.
    _supports_tf_logs = True

    def __init__(self):
        super().__init__()
        self._epoch = 0
        self._has_said_so = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks the loss so far."""
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
