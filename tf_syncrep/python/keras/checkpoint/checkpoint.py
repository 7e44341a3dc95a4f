"""Checkpoints that stop no training, and from which it goes on after a crash."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.checkpoint.arguments import (
    check_interval,
    check_options,
    check_queues,
    check_state,
)
from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.directory import Directory
from tf_syncrep.python.checkpoint.engine import Calls, Engine, Saving
from tf_syncrep.python.checkpoint.failures import Failures
from tf_syncrep.python.checkpoint.progress import Progress
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.contents import contents_of
from tf_syncrep.python.keras.checkpoint.position import Position
from tf_syncrep.python.keras.compat.position import (
    clear_initial_position,
    set_initial_position,
)
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import rounds_of


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that was restored.

    Attributes:
        path: its prefix.
        iterations: the optimizer's, as they are again.
        secs_ago: when it was written.
        state: what was given to `save` with it.
    """

    path: str
    iterations: int
    secs_ago: float
    state: dict[str, Any]


class Checkpoint(tf.keras.callbacks.Callback):
    """Writes checkpoints while training goes on, and goes on from the last one.

    Each parameter server writes its own variables to files of its own, a few MiB at a
    time, beside the training: no table goes through the coordinator, and no step waits.
    The first `fit` restores the newest checkpoint that is whole, if there is one, and
    goes on in the epoch and at the step where it was written (where Keras 3 trains by
    its own loop, in one process, at the beginning of that epoch). After the end of a
    training the last checkpoint is of its end, also if a callback has stopped it early:

    ```python
    checkpoint = tfs.keras.Checkpoint("/shared/run1", every_secs=600)
    tfs.keras.fit(
        model, dataset, epochs=10, steps_per_epoch=1000, callbacks=[checkpoint]
    )
    ```

    `tfs.keras.fit` and `Model.fit` of Keras 3 write that last one after all other
    callbacks have ended the training; with `Model.fit` of Keras 2 put this callback
    last, behind `EarlyStopping(restore_best_weights=True)`.

    and in a custom loop:

    ```python
    checkpoint = tfs.keras.Checkpoint("/shared/run1", model=model)
    checkpoint.restore()
    for step in range(num_steps):
        ...
        if step % 1000 == 0:
            checkpoint.save()
    ```

    With SyncReplicas a checkpoint is of one moment, between two updates. When each
    worker updates by itself, rows are whole, but some are of a step later than others,
    as they always are in such a training.

    A full checkpoint `ckpt-7` is one of TensorFlow's: `tf.train.load_checkpoint`,
    `tf.train.list_variables` and `tf.train.latest_checkpoint` read it. There are tables
    by name, `tables/user`, whatever number of parameter servers they lie on; other
    variables, `variables/dense/kernel`; what the optimizer has beside them,
    `slots/m/tables/user`; and `optimizer/iteration`. It can be restored onto another
    number of parameter servers and workers, with or without SyncReplicas. The remains
    of a crash are not taken for a checkpoint, and a damaged one is passed over, with a
    message.

    The folder must be the same for all tasks: any file system that TensorFlow knows.
    Before the first checkpoint each parameter server writes a small file to it.

    Args:
        directory: the folder, of one training at a time. If the path is relative, it is
            one of the present working directory.
        every_secs: write one so often in `fit`. By default, if `every_n_steps` is not
            given either, every 600 seconds.
        every_n_steps: write one after so many steps of `fit`, in place of
            `every_secs`. While one is being written, no other is begun.
        keep: how many to keep. Those that they build on are kept, too.
        full_every: write all to one of so many, and to the others only those rows of
            tables that have changed since the one before. It takes 8 bytes for each
            row in the memory of the parameter servers, and the first one after a
            start is full.
        model: the model, in a custom loop.
        work_queues: `tfs.data.WorkQueue`s by name, which are saved and restored, too.
        max_kept_bytes: how much memory a parameter server may use, with SyncReplicas,
            to keep rows that are overwritten before they were written to the files. At
            that bound updates wait. Beside it a checkpoint takes up to 64 MiB.
        max_bytes_per_sec: how fast each parameter server may write, so that a disk or
            a network that others use, too, is not taken whole. By default as fast as
            can be.
        raise_at_end: whether `fit` raises at its end what kept the last checkpoint from
            being written. By default the log says so, and how many were.

    Attributes:
        saving: the last checkpoint that was begun, with `manifest`, `bytes_written`,
            `secs`; None before the first.
        restored: what was restored, or None.

    Raises:
        ValueError: an argument out of its range, or `directory` is a file; in `fit`,
            it cannot be written to, or parameter servers do not share it; the model is
            not compiled.

    Reference: Check-N-Run (NSDI 2022) for checkpoints of what has changed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_secs: float | None = None,
        every_n_steps: int | None = None,
        keep: int = 3,
        full_every: int = 1,
        model: Any = None,
        work_queues: Mapping[str, Any] | None = None,
        max_kept_bytes: int = 256 * 2**20,
        max_bytes_per_sec: float | None = None,
        raise_at_end: bool = False,
    ):
        super().__init__()
        self._every_secs, self._every_n_steps = check_interval(
            every_secs=every_secs, every_n_steps=every_n_steps
        )
        self._queues = check_queues(work_queues)
        options = check_options(keep, full_every, max_kept_bytes, max_bytes_per_sec)
        self._engine = Engine(
            Directory(directory, "directory"),
            **options,
            calls=Calls(compat.apart_from_closures),
        )
        self.saving: Saving | None = None
        self.restored: Restored | None = None
        self._manifest: Any = None
        self._contents: Contents | None = None
        self._contents_key: Any = None
        self._position = Position()
        self._steps = 0  # since the last checkpoint was begun
        self._begun = time.monotonic()
        self._progress = Progress(self._engine.directory)
        self._has_trained = False
        self._failures = Failures(
            self._engine.directory, logging.error, bool(raise_at_end)
        )
        self._ends_itself = True  # and not by what `with_ends` puts behind it
        if model is not None:
            self.set_model(model)

    # --- Custom loops ---

    def save(
        self,
        state: Mapping[str, Any] | None = None,
        wait: bool = False,
        *,
        is_last: bool = False,
    ) -> Saving:
        """Begins to write a checkpoint of the present moment.

        Args:
            state: what is to be saved beside the model: what JSON can hold.
            wait: whether to return only when it is written. Without a
                ParameterServerStrategy it always is by then.
            is_last: whether training ends with it, which a `SidecarEvaluator` then
                does, too. That of the end of `fit` is.

        Returns:
            What tells how it goes on: `is_over`, `error`, `wait()`.

        Raises:
            ValueError: JSON cannot hold `state`; the model is not built.
            RuntimeError: one is being written.
            Exception: it could not begin; with `wait`, it was not written.
        """
        rounds = rounds_of(self._model_or_raise.optimizer)
        given = check_state(state)

        def all_state() -> dict[str, Any]:
            return {**self._state(), "given": given, "is_last": bool(is_last)}

        self.saving = self._engine.begin(
            self._contents_of_model(), all_state, rounds.between_updates
        )
        self._steps, self._begun = 0, time.monotonic()
        if wait or not self._is_beside_training:
            self.saving.wait()
        return self.saving

    def restore(self) -> Restored | None:
        """Restores the newest checkpoint that is whole.

        Returns:
            What is known about it; None if there is none.

        Raises:
            ValueError: it is of another model or optimizer, or the model is not
                built.
            DamagedError: there are some, but none is whole.
        """
        manifest = None
        if has_weights(self._model_or_raise) or self._engine.directory.manifests():
            manifest = self._engine.restore(self._contents_of_model())
        if manifest is None:
            self.restored = None
            return None
        for name, queue in self._queues.items():
            saved = manifest.state["work_queues"].get(name)
            if saved is None:
                raise ValueError(
                    f"Checkpoint {manifest.number} has no work queue {name!r}, but "
                    f"{sorted(manifest.state['work_queues'])}."
                )
            queue.restore(np.array(saved, np.int64))
        self.restored = Restored(
            self._engine.directory.prefix(manifest.number),
            int(manifest.state["iterations"]),
            max(0.0, time.time() - manifest.time),
            manifest.state["given"],
        )
        self._manifest = manifest
        return self.restored

    # --- fit ---

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the newest checkpoint, if there is one; once, not again later."""
        del logs
        model = self._model_or_raise
        if has_weights(model):
            self._engine.check_writable(self._contents_of_model())
        else:  # in one process, where `fit` builds it
            self._engine.directory.check_writable()
        # That of a run that did not come to its first epoch.
        clear_initial_position(model)
        self._ends_itself = True
        self._failures.begin_run()
        self._position.begin_epoch(0)
        if not self._has_trained and self.restore() is not None:
            self._go_on()
        self._has_trained = True
        self._progress.begin(self._position.num_steps)
        self._steps, self._begun = 0, time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes which epoch begins."""
        del logs
        clear_initial_position(self._model_or_raise)
        # Not that in whose midst the run begins.
        if epoch != self._position.epoch:
            self._position.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Begins a checkpoint if it is time."""
        del logs
        self._steps += 1
        self._position.step = batch + 1
        self._progress.note(self._position.num_steps)
        if self._is_due and (self.saving is None or self.saving.is_over):
            self._try_to_save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes that the epoch is over."""
        del logs
        self._position.begin_epoch(epoch + 1)

    def on_train_end(self, logs: Any = None) -> None:
        """Writes a last checkpoint."""
        del logs
        if self._ends_itself:
            self._end_run()

    def _end_run(self) -> None:
        """Writes the last checkpoint of a run of `fit`, and says if that fails.

        Raises:
            Exception: it was not written, where that was asked for.
        """
        model = self._model_or_raise
        clear_initial_position(model)
        if self.saving is not None:
            self.saving.wait_until_over()
        position = self._position
        if model.stop_training:
            # For whoever asked for it the training is over, as if no epoch were left.
            epochs = (self.params or {}).get("epochs") or 0
            position.begin_epoch(max(position.epoch, epochs))
        self._progress.end(position.num_steps)
        if not self._try_to_save(wait=True, is_last=True):
            self._failures.end_without_last()

    def _go_on(self) -> None:
        """Has the run begin where the checkpoint was written that was restored."""
        position = self._position
        epochs, steps = ((self.params or {}).get(name) for name in ("epochs", "steps"))
        try:
            position.restore(self._manifest.state, steps)
        except KeyError as error:
            raise ValueError(
                "`directory` must hold checkpoints that say where training goes on. "
                "One of an older version of this package does not: restore a model by "
                "`tfs.keras.Checkpoint(directory, model=model).restore()`, then train "
                "with a new folder. Received: directory="
                f"{self._engine.directory.path!r}, where "
                f"ckpt-{self._manifest.number}.json has no {error}"
            ) from None
        position.step = set_initial_position(
            self._model_or_raise, position.epoch, position.step
        )
        path = self._engine.directory.prefix(self._manifest.number)
        if epochs is not None and position.epoch >= epochs:
            logging.warning(
                "There is nothing left to train: %s is of the end of a training, with "
                "epochs=%d.",
                path,
                position.epoch,
            )
            return
        logging.warning(
            "Training goes on from %s, in %s: %s.%s",
            path,
            position.describe(epochs, steps),
            self._progress.lost_since(self._manifest, position.num_steps),
            " Metrics of this epoch will be those of its other steps."
            if position.step
            else "",
        )

    def _try_to_save(self, wait: bool = False, is_last: bool = False) -> bool:
        """Saves; a failure is logged, and training goes on. Whether there was none."""
        self._failures.note(self.saving and self.saving.error)
        self._failures.begin()
        try:
            self.save(wait=wait, is_last=is_last)
        except (OSError, tf.errors.OpError) as error:
            self._failures.note(error)
            self._steps, self._begun = 0, time.monotonic()
            return False
        return True

    @property
    def _is_due(self) -> bool:
        if self._every_n_steps is not None and self._steps >= self._every_n_steps:
            return True
        return (
            self._every_secs is not None
            and time.monotonic() - self._begun >= self._every_secs
        )

    # --- What is saved ---

    def _state(self) -> dict[str, Any]:
        rounds = rounds_of(self._model_or_raise.optimizer)
        return {
            **self._position.state(rounds),
            "iterations": self._iterations(),
            "work_queues": {
                name: [int(x) for x in queue.save()]
                for name, queue in self._queues.items()
            },
        }

    def _iterations(self) -> int:
        optimizer = self._model_or_raise.optimizer
        with compat.apart_from_closures():
            return int(compat.native(optimizer.iterations).read_value())

    @property
    def _model_or_raise(self) -> Any:
        if self.model is None:
            raise ValueError(
                "Checkpoint needs a model: pass it as a callback to `fit`, or `model=`."
            )
        if getattr(self.model, "optimizer", None) is None:
            raise ValueError(
                "Checkpoint needs a model that is compiled with the optimizer that "
                f"trains it. Received: {self.model.name!r}, which has none"
            )
        return self.model

    @property
    def _is_beside_training(self) -> bool:
        strategy = self._model_or_raise.distribute_strategy
        return isinstance(strategy, tf.distribute.ParameterServerStrategy)

    def _contents_of_model(self) -> Contents:
        """Made again only if the model has other variables than before."""
        model = self._model_or_raise
        if not has_weights(model):
            raise ValueError(
                "Checkpoint needs a model that is built: call it on a batch, or give "
                f"it an Input. Received: {model.name!r}, which has no weights yet"
            )
        key = [id(v) for v in model.variables], id(model.optimizer)
        if self._contents is None or key != self._contents_key:
            self._contents, self._contents_key = contents_of(model), key
        return self._contents


def has_weights(model: Any) -> bool:
    """Whether layers have been built; one that has no `call` never counts as built.

    Args:
        model: a model.
    """
    try:
        return bool(model.weights)
    except ValueError:  # of a Sequential of Keras 2 that is not
        return False
