"""Makes the last checkpoint of a training come after all other callbacks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.checkpoint.checkpoint import Checkpoint


class _End(tf.keras.callbacks.Callback):
    """Ends the run of a Checkpoint that comes before it.

    Callbacks between the two may change weights in their `on_train_end`, as
    `EarlyStopping` does.
    """

    def __init__(self, checkpoint: Checkpoint):
        super().__init__()
        self._checkpoint = checkpoint

    def on_train_begin(self, logs: Any = None) -> None:
        """Takes the end over from the Checkpoint."""
        del logs
        self._checkpoint._ends_itself = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tells the Checkpoint if a callback behind it has stopped training."""
        del batch
        self._checkpoint._note_stop(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Writes the last checkpoint."""
        del logs
        self._checkpoint._end_run()


def with_ends(callbacks: Any) -> Any:
    """Adds callbacks after those of `fit` that end its checkpoints.

    `callbacks`: one callback, several, or None. Checkpoints that have such a callback
    already get no other one. They are put into a CallbackList itself.
    """
    is_list = isinstance(callbacks, tf.keras.callbacks.CallbackList)
    each = callbacks.callbacks if is_list else tf.nest.flatten(callbacks or [])
    ended = [x._checkpoint for x in each if isinstance(x, _End)]
    each += [_End(x) for x in each if isinstance(x, Checkpoint) and x not in ended]
    return callbacks if is_list else each
