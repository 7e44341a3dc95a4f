"""Checkpoints that do not stop the training, and from which it continues."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.directory import Directory
from tf_syncrep.python.checkpoint.engine import Engine, Options, Saving
from tf_syncrep.python.checkpoint.function_calls import FunctionCalls
from tf_syncrep.python.checkpoint.notice import Notice
from tf_syncrep.python.checkpoint.run import Run
from tf_syncrep.python.checkpoint.state import (
    check_queues,
    check_state,
    restore_queues,
    states_of,
)
from tf_syncrep.python.checkpoint.warm_report import WarmStartReport
from tf_syncrep.python.checkpoint.warm_terms import arguments_of
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.contents import (
    ModelContents,
    compiled_model,
    has_weights,
    iterations_of,
)
from tf_syncrep.python.keras.checkpoint.position import Position
from tf_syncrep.python.keras.checkpoint.warm_start import warm_start as start_warm
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.compat.position import (
    clear_initial_position,
    set_initial_position,
)
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import rounds_of
from tf_syncrep.python.keras.tables.setting import being_set


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that was restored."""

    path: str
    iterations: int
    secs_ago: float
    state: dict[str, Any]


class Checkpoint(tf.keras.callbacks.Callback):
    """Writes checkpoints while training goes on, and continues from the last one.

    Each parameter server writes its own variables to its own files, a few MiB at a
    time, beside the training: no table passes through the coordinator, and no step
    waits. The first `fit` restores the newest whole checkpoint, if there is one, and
    continues in the epoch and at the step where it was written. (If Keras 3 trains by
    its own loop, in one process, it continues at the beginning of that epoch.) At the
    end of a training a last checkpoint is written. If a callback has stopped training
    at the end of an epoch, as `EarlyStopping` does, it is over; if after a batch, the
    next run goes on in that epoch:

    ```python
    checkpoint = tfs.keras.Checkpoint("/shared/run1", every_secs=600)
    tfs.keras.fit(
        model, dataset, epochs=10, steps_per_epoch=1000, callbacks=[checkpoint]
    )
    ```

    `tfs.keras.fit` and `Model.fit` write the last one after all other callbacks have
    ended the training. In a loop of your own put this callback last in a
    `tf.keras.callbacks.CallbackList`, after `EarlyStopping(restore_best_weights=True)`.

    In a custom loop:

    ```python
    checkpoint = tfs.keras.Checkpoint("/shared/run1", model=model)
    checkpoint.restore()
    for step in range(num_steps):
        ...
        if step % 1000 == 0:
            checkpoint.save()
    ```

    With SyncReplicas a checkpoint shows one moment, between two updates. When each
    worker updates by itself, rows are whole, but some belong to a later step than
    others, as they always do in such a training.

    A full checkpoint `ckpt-7` is one of TensorFlow's: `tf.train.load_checkpoint`,
    `tf.train.list_variables` and `tf.train.latest_checkpoint` read it. A table is found
    by its name, as `tables/user`, whatever the number of parameter servers that hold
    it. Other variables have names such as `variables/dense/kernel`, slots such as
    `slots/m/tables/user`, and the optimizer's counter is `optimizer/iteration`. A
    checkpoint can be restored onto another number of parameter servers and workers,
    with or without SyncReplicas. The remains of a crash are not taken for a checkpoint,
    and one that is damaged, or whose trained weights are not finite, is passed over,
    with a message.

    The folder must be the same for all tasks, in any file system that TensorFlow knows.
    Before the first checkpoint each parameter server writes a small file to it.

    Args:
        directory: the folder, to which one training at a time may write. A relative
            path refers to the present working directory.
        every_secs: how often to write one in `fit`, in seconds; 600 if neither this nor
            `every_n_steps` is given.
        every_n_steps: how often to write one, in steps of `fit`, instead of
            `every_secs`. It begins after the execution that completes this number,
            where executions have several steps. While one is being written, no other is
            begun.
        keep: how many to keep. Those on which they build are kept, too, and beside them
            the newest one if its weights are not finite.
        full_every: one checkpoint of this many is full; the others hold only those rows
            of tables that have changed since the checkpoint before. It takes 8 bytes
            for each row in the memory of the parameter servers, and the first
            checkpoint after a start is full.
        model: the model, in a custom loop.
        work_queues: `tfs.data.WorkQueue`s by name, which are saved and restored, too.
        max_kept_bytes: how much memory a parameter server may use, with SyncReplicas,
            to keep rows that are overwritten before they were written to the files.
            Updates wait when it is used up. A checkpoint takes up to 64 MiB more.
        max_bytes_per_sec: how fast each parameter server may write, to leave a part of
            a shared disk or network to others. By default there is no limit.
        raise_at_end: whether `fit` raises an error at its end if the last checkpoint
            was not written. By default the log says so, and how many were written.
        warm_start: where the folder has no checkpoint to go on from, the model begins
            with what fits it of this source, a checkpoint or a folder; or a dict of the
            arguments of `tfs.keras.warm_start`:
            `{"source": "/shared/run1", "rename": {"tables/item": "tables/goods"}}`.

    Attributes:
        saving: the last checkpoint that was begun; None before the first one. It has
            `is_over`, `error` (None if there is none), `wait()`, `bytes_written`,
            `secs` (how long it took), and `manifest`, which is None until it is
            complete.
        restored: the checkpoint that was restored, or None. It has `path` (the prefix
            of its files), `iterations` (the optimizer's), `secs_ago` (how long ago it
            was written) and `state` (what `save` was given).
        warm_started: what `tfs.keras.warm_start` returned, or None.

    Raises:
        ValueError: an argument is out of range, or `directory` is a file. In `fit`: the
            folder cannot be written to, parameter servers do not share it, or the model
            is not compiled.
        Exception: in `fit`: there are checkpoints, but none is whole.

    Reference: Check-N-Run (NSDI 2022), for checkpoints that hold only changes.
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
        warm_start: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    ):
        super().__init__()
        # Keras 2 sets this in a run, and not from a CallbackList made without it.
        self.params: Any = None
        folder = Directory(directory, "directory")
        self._run = Run(
            folder,
            logging.error,
            bool(raise_at_end),
            every_secs=every_secs,
            every_n_steps=every_n_steps,
        )
        self._queues = check_queues(work_queues)
        self._engine = Engine(
            folder,
            FunctionCalls(compat.apart_from_closures),
            Options(keep, full_every, max_kept_bytes, max_bytes_per_sec),
        )
        self.saving: Saving | None = None
        self.restored: Restored | None = None
        self._warm_start = arguments_of(warm_start)
        self.warm_started: WarmStartReport | None = None
        self._manifest: Any = None
        self._contents = ModelContents("Checkpoint")
        self._position = Position()
        self._has_trained = False
        # `with_ends` may add a callback that ends the run instead.
        self._ends_itself = True
        # Whether training was stopped within an epoch, and the loss there.
        self._is_cut, self._loss = False, 0.0
        self._not_finite: str | None = None
        # Of the run of `fit` that goes on, which sets it.
        self.notice: Notice | None = None
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
        """Begins to write a checkpoint of this moment.

        Args:
            state: values to save beside the model, which JSON can hold.
            wait: whether to return only when it is written. Without a
                ParameterServerStrategy this is always so.
            is_last: whether training ends with it; a `SidecarEvaluator` then ends, too.
                The checkpoint at the end of `fit` is such a last one.

        Returns:
            The checkpoint being written, with `is_over`, `error` and `wait()`.

        Raises:
            ValueError: JSON cannot hold `state`; the model is not built.
            RuntimeError: another one is being written.
            Exception: the checkpoint could not begin; with `wait`, it was not written.
        """
        rounds = rounds_of(self._model_or_raise.optimizer)
        given = check_state(state)
        self._run.begin_interval(self._position.num_steps)

        def all_state() -> dict[str, Any]:
            return {**self._state(), "given": given, "is_last": bool(is_last)}

        with being_set:  # no table is half set at that moment
            self.saving = self._engine.begin(
                self._contents_of_model(), all_state, rounds.between_updates
            )
        if wait or not self._is_beside_training:
            self.saving.wait()
        return self.saving

    def restore(self) -> Restored | None:
        """Restores the newest whole checkpoint, or else takes the `warm_start`.

        Returns:
            The checkpoint that was restored; None if there is none.

        Raises:
            ValueError: it belongs to another model or optimizer, or the model is not
                built; or what `tfs.keras.warm_start` raises.
            Exception: there are checkpoints, but none is whole; the message says what
                is wrong with each.
        """
        manifest = None
        if has_weights(self._model_or_raise) or self._engine.directory.manifests():
            contents = self._contents_of_model()
            with being_set:
                manifest = self._engine.restore(contents)
        if manifest is None:
            self.restored = None
            if self._warm_start is not None:
                self.warm_started = start_warm(self.model, **self._warm_start)
            return None
        restore_queues(self._queues, manifest)
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
        """Restores the newest checkpoint, if there is one; only the first time."""
        del logs
        model = self._model_or_raise
        if has_weights(model):
            self._engine.check_writable(self._contents_of_model())
        else:  # In one process `fit` builds the model later.
            self._engine.directory.check_writable()
        # A BackupAndRestore may have left the position of an earlier `Model.fit`.
        clear_initial_position(model)
        self._ends_itself = True
        self._is_cut, self._not_finite = False, None
        self._run.forget_failures()
        self._position.begin_epoch(0)
        if not self._has_trained and self.restore() is not None:
            self._go_on()
        self._has_trained = True
        self._run.progress.begin(self._position.num_steps)
        self._run.begin_interval(self._position.num_steps)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes which epoch begins."""
        del logs
        clear_initial_position(self._model_or_raise)
        if self.notice is not None:
            self.notice.has_begun = True
        # The epoch in the middle of which the run begins is known already.
        if epoch != self._position.epoch:
            self._position.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Begins a checkpoint if it is time."""
        self._note_stop(logs)
        # It is called once for all steps of an execution.
        self._position.step = batch + 1
        num_steps = self._position.num_steps
        self._run.progress.note(num_steps)
        self._leave_if_noticed()
        if self._run.is_due(num_steps) and (self.saving is None or self.saving.is_over):
            self._try_to_save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes that the epoch is over."""
        del logs
        if not self._is_cut:
            self._position.begin_epoch(epoch + 1)
        self._leave_if_noticed()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends a validation if the program is to end."""
        del batch, logs
        self._leave_if_noticed()

    def on_train_end(self, logs: Any = None) -> None:
        """Writes a last checkpoint."""
        del logs
        if self._ends_itself:
            self._end_run()

    def _leave_if_noticed(self) -> None:
        """Ends the program if it has notice; a loop of `tfs.keras.fit` does it itself.

        It comes before any other end of the training, which would look like one.
        """
        notice = self.notice
        if notice is not None and not self._is_beside_training and notice.is_given:
            self.save_at_notice(notice)
            notice.leave()

    def save_at_notice(self, notice: Notice) -> None:
        """Writes a checkpoint before the program is ended; called by `fit`.

        It is not begun if there is not the time that the last one took.

        Args:
            notice: tells how much time is left.
        """
        writes = self.saving is not None and not self.saving.is_over
        begun = time.monotonic()
        has_time = notice.has_time(self._engine.expected_secs(), 1 + writes)
        if writes:
            # It is not given up for one that may not be complete.
            self.saving.wait_until_over()
        is_saved = has_time and self._try_to_save(wait=True)
        steps = self._position.num_steps
        if is_saved and self.saving is not None and self.saving.manifest is not None:
            # Batches of an incomplete round are trained again, and none is lost.
            steps = self.saving.manifest.state["steps"]
        self._run.progress.end(steps)
        secs = time.monotonic() - begun if is_saved else None
        notice.say_next(self._engine.directory, secs)

    def _note_stop(self, logs: Any) -> None:
        """Notes whether a callback has stopped training after this batch."""
        self._is_cut = bool(self._model_or_raise.stop_training)
        self._loss = (logs or {}).get("loss", 0.0)

    def _end_run(self) -> None:
        """Writes the last checkpoint of a run of `fit`, and logs its failure."""
        model = self._model_or_raise
        clear_initial_position(model)
        if self.saving is not None:
            self.saving.wait_until_over()
        position = self._position
        if self._is_cut and not np.all(np.isfinite(self._loss)):
            self._not_finite = "the loss at which training was stopped"
        elif model.stop_training and not self._is_cut:
            # The callback that has stopped it considers the training over, so no epoch
            # is left.
            epochs = (self.params or {}).get("epochs") or 0
            position.begin_epoch(max(position.epoch, epochs))
        self._run.progress.end(position.num_steps)
        if not self._try_to_save(wait=True, is_last=True):
            self._run.end_without_last()

    def _go_on(self) -> None:
        """Lets the run begin where the restored checkpoint was written."""
        position = self._position
        epochs, steps = ((self.params or {}).get(name) for name in ("epochs", "steps"))
        position.restore(self._manifest.state, steps)
        position.step = set_initial_position(
            self._model_or_raise, position.epoch, position.step
        )
        path = self._engine.directory.prefix(self._manifest.number)
        if epochs is not None and position.epoch >= epochs:
            logging.warning(
                "There is nothing left to train: %s was written at the end of a "
                "training, with epochs=%d.",
                path,
                position.epoch,
            )
            return
        of_rest = " Metrics of this epoch will be those of its steps from here on."
        print(
            f"Training goes on from {path}, in {position.describe(epochs, steps)}: "
            f"{self._run.progress.lost_since(self._manifest, position.num_steps)}."
            f"{of_rest if position.step else ''}",
            flush=True,
        )

    def _try_to_save(self, wait: bool = False, is_last: bool = False) -> bool:
        """Saves a checkpoint; returns whether it could. A failure is only logged."""
        self._run.note_failure(self.saving)
        save = functools.partial(self.save, wait=wait, is_last=is_last)
        return self._run.try_to_save(save) is not None

    # --- What is saved ---

    def _state(self) -> dict[str, Any]:
        rounds = rounds_of(self._model_or_raise.optimizer)
        not_finite = self._not_finite
        return {
            **({"not_finite": not_finite} if not_finite else {}),
            **self._position.state(rounds),
            "iterations": iterations_of(self._model_or_raise),
            "work_queues": states_of(self._queues),
        }

    @property
    def _model_or_raise(self) -> Any:
        return compiled_model(self.model, "Checkpoint")

    @property
    def _is_beside_training(self) -> bool:
        strategy = self._model_or_raise.distribute_strategy
        return isinstance(strategy, tf.distribute.ParameterServerStrategy)

    def _contents_of_model(self) -> Contents:
        return self._contents.of(self._model_or_raise)


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


def with_ends(model: Any, callbacks: Any) -> Any:
    """Adds callbacks after those of `fit` that end its checkpoints.

    Checkpoints that have such a callback already get no other one.
    """
    given = trainer.each_callback(callbacks)
    ended = [x._checkpoint for x in given if isinstance(x, _End)]
    ends = [_End(x) for x in given if isinstance(x, Checkpoint) and x not in ended]
    return trainer.with_callbacks(model, callbacks, behind=ends)
