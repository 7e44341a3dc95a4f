"""Where in its epochs a training begins that continues from a checkpoint.

The position belongs to one run of `fit`: a callback sets it in `on_train_begin`, and
the loop reads it right after that. A callback can tell Keras' own loops only through
the model, and the model must not keep the position any longer than that.

Private, since the only public name is `fit`'s argument `initial_epoch`:
`BackupAndRestore` passes it to `Model.fit` in `_initial_epoch` (Keras 3) or
`_training_state` (Keras 2; checked with Keras 3.10 to 3.15, tf_keras, Keras 2.15).
Keras 3 has nothing for the step in the epoch; `tfs.keras.fit` reads it from here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras.compat.native import IS_KERAS_3

_STEP = "_tf_syncrep_initial_step"


class _TrainingState:
    """The object that `Model.fit` of Keras 2 asks.

    A run that fails before it asks leaves this object to the next one, which has
    another History.
    """

    def __init__(self, model: Any, epoch: int, step: int):
        self._position = epoch, step
        self._model, self._history = model, model.history

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: Any, initial_epoch: int, mode: Any = None
    ) -> tuple[int, int]:
        """Returns where to begin."""
        del steps_per_epoch, mode
        if self._model.history is not self._history:
            return initial_epoch, 0
        epoch, step = self._position
        return (epoch, step) if epoch >= initial_epoch else (initial_epoch, 0)


def set_initial_position(model: Any, epoch: int, step: int) -> int:
    """Sets where the run begins; to be called in its `on_train_begin`.

    Returns how many steps the loop skips: none if Keras 3 trains by its own loop.
    """
    if not IS_KERAS_3:
        model._training_state = _TrainingState(model, epoch, step)
        return step
    model._initial_epoch = epoch
    if not isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy):
        return 0
    # Keras would track an assigned attribute.
    vars(model)[_STEP] = step
    return step


def clear_initial_position(model: Any) -> None:
    """Makes the next run begin where its arguments say."""
    if IS_KERAS_3:
        model._initial_epoch = None
        vars(model).pop(_STEP, None)
    else:
        model._training_state = None


@contextlib.contextmanager
def handing_over(model: Any) -> Iterator[None]:
    """Encloses the code that sets the position of a run and reads it.

    Afterwards nothing is left for the next run, however this one ends.
    """
    try:
        yield
    finally:
        clear_initial_position(model)


def initial_position(
    model: Any, num_steps: int | None, initial_epoch: int
) -> tuple[int, int]:
    """Returns where to begin: where a callback has said, or where `fit` was told.

    `num_steps`: how many steps an epoch has, if known.
    """
    if IS_KERAS_3:
        epoch = getattr(model, "_initial_epoch", None) or initial_epoch
        return epoch, vars(model).get(_STEP, 0)
    return model._maybe_load_initial_counters_from_ckpt(num_steps, initial_epoch)
