"""Publishes a model while it is trained, for those who serve it."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.base.request import Request
from tf_syncrep.python.checkpoint.contents import Contents
from tf_syncrep.python.checkpoint.engine import Saving
from tf_syncrep.python.checkpoint.function_calls import FunctionCalls
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
from tf_syncrep.python.serving.publication_writer import PublicationWriter

__all__ = ["Publisher"]


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
            until it is complete. Its SavedModel, if it has one, may come after that.

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
        self._dtype = _checked_dtype(dtype)
        self._input_signature = input_signature
        self._writer = PublicationWriter(
            directory,
            lambda: FunctionCalls(compat.apart_from_closures),
            full_every,
            keep,
            max_kept_bytes,
            max_bytes_per_sec,
        )
        self._run = self._writer.interval(logging.error, every_secs, every_n_steps)
        self._contents = ModelContents("Publisher", with_optimizers=False)
        # The last contents, and the model as it was traced for them.
        self._traced: tuple[Contents, _Served] | None = None
        self._position = Position()
        if model is not None:
            self.set_model(model)

    @property
    def publishing(self) -> Saving | None:
        """The last publication that was begun; None before the first one."""
        return self._writer.last

    def publish(self, wait: bool = False) -> Saving:
        """Begins to publish the model as it is at this moment.

        Args:
            wait: whether to return only when it is published, and its SavedModel
                made, if it has one. Without a ParameterServerStrategy this is always
                so.

        Returns:
            What is being published, with `is_over`, `error` and `wait()`.

        Raises:
            ValueError: the model is not built or not compiled, or cannot be published.
            RuntimeError: another one is being written.
            Exception: it could not begin; with `wait`, it was not written.
        """
        contents, served = self._prepare()
        model = self._model_or_raise
        self._run.begin_interval(self._position.num_steps)
        with being_set:  # no table is half set at that moment
            publication = self._writer.begin(
                contents,
                served,
                lambda: {"iterations": iterations_of(model)},
                rounds_of(model.optimizer).between_updates,
            )
        strategy = model.distribute_strategy
        if wait or not isinstance(strategy, tf.distribute.ParameterServerStrategy):
            publication.wait()
            self._writer.wait()
        return publication

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that the folder can be written to."""
        del logs
        if has_weights(self._model_or_raise):
            contents, _ = self._prepare()
            self._writer.check_writable(contents)
        else:  # In one process `fit` builds the model later.
            self._writer.folder.check_writable()
        self._run.forget_failures()
        if self.publishing is None:
            self._run.make_due()
        else:
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
        is_due = self._run.is_due(self._position.num_steps)
        if is_due and (last is None or last.is_over):
            self._run.note_failure(last)
            self._run.try_to_save(self.publish)

    def on_train_end(self, logs: Any = None) -> None:
        """Publishes the end of the training."""
        del logs
        if self.publishing is not None:
            self._writer.wait()
            self._run.note_failure(self.publishing)
        if self._run.try_to_save(lambda: self.publish(wait=True)) is None:
            self._run.end_without_last()

    @property
    def _model_or_raise(self) -> Any:
        return compiled_model(self.model, "Publisher")

    def _prepare(self) -> tuple[Contents, _Served]:
        """Returns the model's contents; traces the model if it has new variables."""
        model = self._model_or_raise
        contents = self._contents.of(model)
        if self._traced is None or self._traced[0] is not contents:
            request = Request(
                lambda: ServedModel(model, contents, self._input_signature, self._dtype)
            )
            # Another thread is in no scope of the strategy, which would put the
            # variables on parameter servers.
            threading.Thread(target=request.serve, name="trace").start()
            devices = [share.device for share in contents.shares]
            self._traced = contents, _Served(request.result(), devices)
        return self._traced


@dataclasses.dataclass(frozen=True)
class _Served:
    """A traced model, and the CPUs of the tasks that copy its rows."""

    model: ServedModel
    devices: Sequence[str]

    def describe(self) -> dict[str, Any]:
        return self.model.describe()

    def assemble(self, number: int, prefix: str, folder: str) -> None:
        with compat.apart_from_closures():
            assemble(self.model, number, prefix, folder, self.devices)


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
