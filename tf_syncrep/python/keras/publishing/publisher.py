"""Publishes a model while it is trained, for those who serve it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import sys
import threading
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.arguments import check_count
from tf_syncrep.python.base.request import Request
from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.directory import Directory, Manifest
from tf_syncrep.python.checkpoint.engine import Engine, Options, Saving
from tf_syncrep.python.checkpoint.function_calls import FunctionCalls
from tf_syncrep.python.checkpoint.run import Run
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.checkpoint.contents import (
    ModelContents,
    compiled_model,
    has_weights,
    iterations_of,
)
from tf_syncrep.python.keras.checkpoint.position import Position
from tf_syncrep.python.keras.publishing.assembly import assemble
from tf_syncrep.python.keras.publishing.served_model import ServedModel
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import rounds_of
from tf_syncrep.python.keras.tables.setting import being_set
from tf_syncrep.python.serving.publications import Publications

__all__ = ["Publisher"]

_DEFAULT_SECS = 60.0


class Publisher(tf.keras.callbacks.Callback):
    """Publishes a model while it is trained, so that what serves it follows in seconds.

    The first publication of a training is a SavedModel of TensorFlow's own ops. Those
    that follow have only what has changed since the one before: the rows of tables, the
    rows that were removed from tables that grow, and all dense variables, without
    slots. Each parameter server writes its own rows beside the training, as
    `tfs.keras.Checkpoint` does, and every `full_every`-th publication has a
    SavedModel, too, to begin with. With SyncReplicas each publication shows one
    moment, between two updates:

    ```python
    publisher = tfs.keras.Publisher("/shared/published", every_secs=5)
    tfs.keras.fit(model, batches, steps_per_epoch=1000, callbacks=[publisher])
    ```

    `tf_syncrep.serving.Follower("/shared/published")` serves the newest one, in any
    process with TensorFlow. A SavedModel `/shared/published/7` is one that TensorFlow
    Serving loads, and its signature `apply_delta` updates it.

    In a custom loop call `publish`:

    ```python
    publisher = tfs.keras.Publisher("/shared/published", model=model)
    for step in range(num_steps):
        ...
        if step % 1000 == 0:
            publisher.publish()
    ```

    At the end of `fit` a last one is published. Put it behind callbacks that change
    weights at the end, such as `EarlyStopping(restore_best_weights=True)`.

    Args:
        directory: the folder, to which one training at a time may publish, and which
            all tasks share.
        every_secs: how often to publish in `fit`, in seconds; 60 if neither this nor
            `every_n_steps` is given. While one is being written, no other is begun.
        every_n_steps: how often to publish, in steps of `fit`, instead.
        full_every: one publication of this many has a SavedModel.
        keep: how many of those with a SavedModel to keep, with all that follow them.
            One who follows, and is further behind, loads a SavedModel anew.
        model: the model, in a custom loop.
        input_signature: `tf.TensorSpec`s, in the structure of the model's inputs; None
            for a model with `Input` layers, which tells them.
        dtype: "float16" or "bfloat16", to serve the vectors of tables in half of the
            memory, rounded; None for the dtype in which they are trained. Scores are
            then near those of the trained model, not the same. Deltas are as large as
            without it.
        max_kept_bytes: how much memory a parameter server may use, with SyncReplicas,
            to keep rows that are overwritten before they were written to the files.
        max_bytes_per_sec: how fast each parameter server may write. By default there is
            no limit.

    Attributes:
        publishing: the last publication that was begun; None before the first one. It
            has `is_over`, `error` (None if there is none), `wait()`, `bytes_written`,
            `rows_written`, `secs` (how long it took), and `manifest`, which is None
            until it is complete.

    Raises:
        ValueError: an argument is out of range, or `directory` is a file. In `fit`: the
            folder cannot be written to, or parameter servers do not share it; the model
            is not compiled, or uses variables of no layer.

    References: Monolith (arXiv:2209.07663); Ekko (OSDI 2022).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_secs: float | None = None,
        every_n_steps: int | None = None,
        full_every: int = 50,
        keep: int = 2,
        model: Any = None,
        input_signature: Any = None,
        dtype: Any = None,
        max_kept_bytes: int = 256 * 2**20,
        max_bytes_per_sec: float | None = None,
    ):
        super().__init__()
        self._full_every = check_count("full_every", full_every)
        self._dtype = _checked_dtype(dtype)
        self._input_signature = input_signature
        folder = Publications(directory, "directory", self._complete)
        self._folder = folder
        self._run = Run(
            folder,
            logging.error,
            what="publication",
            default_secs=_DEFAULT_SECS,
            every_secs=every_secs,
            every_n_steps=every_n_steps,
        )
        # Each builds on the one before: servers compare rows with their last ones.
        options = Options(keep, sys.maxsize, max_kept_bytes, max_bytes_per_sec)
        self._engine = Engine(
            folder, FunctionCalls(compat.apart_from_closures), options
        )
        self._raw = Directory(os.path.join(folder.path, "raw"))
        self._fulls = Engine(
            self._raw,
            FunctionCalls(compat.apart_from_closures),
            dataclasses.replace(options, keep=1, full_every=1),
        )
        self.publishing: Saving | None = None
        self._contents = ModelContents("Publisher", with_optimizers=False)
        self._served: ServedModel | None = None
        self._served_of: Contents | None = None
        # All rows of the moment of the publication that is being written, if it has a
        # SavedModel beside what has changed.
        self._full: concurrent.futures.Future[Saving] | None = None
        self._since_full = 0
        self._position = Position()
        if model is not None:
            self.set_model(model)

    def publish(self, wait: bool = False) -> Saving:
        """Begins to publish the model as it is at this moment.

        Args:
            wait: whether to return only when it is published. Without a
                ParameterServerStrategy this is always so.

        Returns:
            What is being published, with `is_over`, `error` and `wait()`.

        Raises:
            ValueError: the model is not built or not compiled, or cannot be published.
            RuntimeError: another one is being written.
            Exception: it could not begin; with `wait`, it was not written.
        """
        last = self.publishing
        if last is not None and not last.is_over:
            raise RuntimeError(
                "Two publications cannot be written to one folder at a time, and one "
                f"is being written. Received: directory={self._folder.path!r}"
            )
        contents = self._prepare()
        self._run.begin_interval(self._position.num_steps)
        follows = last is not None and last.error is None
        with being_set:  # no table is half set at that moment
            if follows and self._since_full + 1 >= self._full_every:
                self.publishing = self._begin_both(contents)
            else:
                self._full = None
                self.publishing = self._begin(contents)
        strategy = self._model_or_raise.distribute_strategy
        if wait or not isinstance(strategy, tf.distribute.ParameterServerStrategy):
            self.publishing.wait()
        return self.publishing

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that the folder can be written to."""
        del logs
        if has_weights(self._model_or_raise):
            self._engine.check_writable(self._prepare())
        else:  # In one process `fit` builds the model later.
            self._folder.check_writable()
        self._run.forget_failures()
        self._run.begin_interval(self._position.num_steps)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes which epoch begins."""
        del logs
        self._position.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Begins a publication if it is time, and the first one at once."""
        del logs
        # It is called once for all steps of an execution.
        self._position.step = batch + 1
        last = self.publishing
        is_due = last is None or self._run.is_due(self._position.num_steps)
        if is_due and (last is None or last.is_over):
            self._run.note_failure(last)
            self._run.try_to_save(self.publish)

    def on_train_end(self, logs: Any = None) -> None:
        """Publishes the end of the training."""
        del logs
        if self.publishing is not None:
            self.publishing.wait_until_over()
            self._run.note_failure(self.publishing)
        if self._run.try_to_save(lambda: self.publish(wait=True)) is None:
            self._run.end_without_last()

    @property
    def _model_or_raise(self) -> Any:
        return compiled_model(self.model, "Publisher")

    def _prepare(self) -> Contents:
        """Returns the model's contents; traces the model if it has new variables."""
        model = self._model_or_raise
        contents = self._contents.of(model)
        if contents is not self._served_of:
            request = Request(
                lambda: ServedModel(model, contents, self._input_signature, self._dtype)
            )
            # Another thread is in no scope of the strategy, which would put the
            # variables on parameter servers.
            threading.Thread(target=request.serve, name="trace").start()
            self._served, self._served_of = request.result(), contents
        return contents

    def _begin(self, contents: Contents, at_the_same_moment: Any = None) -> Saving:
        """Begins to write what has changed; calls a function at its moment, behind."""
        rounds = rounds_of(self._model_or_raise.optimizer)

        def moment(begin):
            def both():
                begin()
                if at_the_same_moment is not None:
                    at_the_same_moment()

            rounds.between_updates(both)

        return self._engine.begin(contents, self._state, moment)

    def _begin_both(self, contents: Contents) -> Saving:
        """Begins to write what has changed, and all rows, of one moment."""
        begun: list[Saving] = []
        # What is written may be complete before the call below has returned.
        full = self._full = concurrent.futures.Future()

        def moment(begin_full):
            begun.append(self._begin(contents, begin_full))

        try:
            full.set_result(self._fulls.begin(contents, dict, moment))
        except BaseException as error:
            full.set_exception(error)
            raise
        return begun[0]

    def _state(self) -> dict[str, Any]:
        return {"iterations": iterations_of(self._model_or_raise)}

    def _complete(self, manifest: Manifest) -> Manifest:
        """Adds the SavedModel to what has changed, if this publication has one."""
        number, full = manifest.number, self._full
        if manifest.is_full:
            has_full = True
            self._assemble(number, self._folder.prefix(number))
            self._folder.discard_rows(number)
        else:
            has_full = full is not None and self._try_to_assemble(number, full)
        if has_full or full is not None:
            self._delete_raw(full)
        self._since_full = 0 if has_full else self._since_full + 1
        served: Any = self._served
        state = {**manifest.state, "full": has_full, **served.describe()}
        return dataclasses.replace(manifest, state=state)

    def _try_to_assemble(self, number: int, full: Any) -> bool:
        """Writes the SavedModel; a failure is only logged, since the delta is there."""
        try:
            raw = full.result().wait().number
            self._assemble(number, self._raw.prefix(raw))
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            logging.error("Publication %d has no SavedModel: %s", number, error)
            return False
        return True

    def _delete_raw(self, full: Any) -> None:
        """Deletes rows of which a SavedModel was made, or was to be made.

        A training that was killed may have left some, too.
        """
        with contextlib.suppress(Exception):  # They are deleted the next time.
            if full is not None and full.exception() is None:
                full.result().wait_until_over()
            for manifest in self._raw.manifests():
                self._raw.delete_files(manifest.number)
            self._raw.delete_leftovers()

    def _assemble(self, number: int, prefix: str) -> None:
        assert self._served is not None
        assert self._served_of is not None
        folder = os.path.join(self._folder.temporary(number), "full")
        devices = [share.device for share in self._served_of.shares]
        with compat.apart_from_closures():
            assemble(self._served, number, prefix, folder, devices)
        tf.io.gfile.rename(folder, self._folder.full(number))


def _checked_dtype(dtype: Any) -> tf.DType | None:
    if dtype is None:
        return None
    try:
        found = tf.as_dtype(dtype)
    except TypeError:
        found = None
    if found not in (tf.half, tf.bfloat16):
        raise ValueError(
            f"`dtype` must be 'float16', 'bfloat16' or None. Received: dtype={dtype!r}"
        )
    return found
