"""Where in its epochs a training begins that goes on from a checkpoint.

Private, as there is nothing public but `fit`'s argument `initial_epoch`: what
`BackupAndRestore` leaves for `Model.fit`, `_initial_epoch` in Keras 3 and
`_training_state` in Keras 2 (checked with Keras 3.3 to 3.15, tf_keras, Keras 2.15).
Keras 3 has nothing for the step in the epoch; `tfs.keras.fit` reads it from here.
"""

from __future__ import annotations

from typing import Any

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

_STEP = "_tf_syncrep_initial_step"


class _TrainingState:
    """What `Model.fit` of Keras 2 asks."""

    def __init__(self, epoch: int, step: int):
        self._position = epoch, step

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: Any, initial_epoch: int, mode: Any = None
    ) -> tuple[int, int]:
        """Where to begin."""
        del steps_per_epoch, mode
        epoch, step = self._position
        return (epoch, step) if epoch >= initial_epoch else (initial_epoch, 0)


def set_initial_position(model: Any, epoch: int, step: int) -> None:
    """Says where the training is to begin that is about to.

    Args:
        model: the model.
        epoch: the first epoch.
        step: how many of its steps are done.
    """
    if IS_KERAS_3:
        model._initial_epoch = epoch
        # Not an attribute by assignment, which Keras would track.
        vars(model)[_STEP] = step
    else:
        model._training_state = _TrainingState(epoch, step)


def clear_initial_position(model: Any) -> None:
    """Has the next training begin where it is told to."""
    if IS_KERAS_3:
        model._initial_epoch = None
        vars(model).pop(_STEP, None)
    else:
        model._training_state = None


def initial_position(
    model: Any, num_steps: int | None, initial_epoch: int
) -> tuple[int, int]:
    """Where to begin, unless a callback has said otherwise.

    Args:
        model: the model.
        num_steps: steps of an epoch, if known.
        initial_epoch: `fit`'s argument.

    Returns:
        The epoch, and how many of its steps are done.
    """
    if IS_KERAS_3:
        epoch = getattr(model, "_initial_epoch", None) or initial_epoch
        return epoch, vars(model).get(_STEP, 0)
    return model._maybe_load_initial_counters_from_ckpt(num_steps, initial_epoch)
