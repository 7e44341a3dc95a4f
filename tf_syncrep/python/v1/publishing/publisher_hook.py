"""Publishes the model of a `tf.compat.v1` session while it is trained."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1 import logging

from tf_syncrep.python.checkpoint.engine import Moment, Saving
from tf_syncrep.python.serving.publication_writer import PublicationWriter
from tf_syncrep.python.v1.checkpoint.session_calls import SessionCalls
from tf_syncrep.python.v1.checkpoint.session_savings import SessionSavings
from tf_syncrep.python.v1.publishing.served_graph import ServedGraph

__all__ = ["PublisherHook"]

_Tensors = Mapping[str, Any]


class PublisherHook(tf.compat.v1.train.SessionRunHook):
    """Publishes a session's model while it is trained, for those who serve it.

    It does for v1 scripts what `tfs.keras.Publisher` does for Keras, in the same
    format: the first publication is a SavedModel, and those that follow have the rows
    and the other variables that have changed. Each parameter server writes its own
    rows, beside the training. A `tf_syncrep.serving.Follower` serves the newest one.
    With a SyncReplicasOptimizer in the graph each shows one moment, between two
    updates.

    A graph that trains is not the one that serves: it reads examples and has dropout,
    for example. So a function builds the one that serves, with variables of the same
    names:

    ```python
    def score(ids):  # also of the loss that is trained
        table = tf.compat.v1.get_variable("table", [1_000_000, 16])
        bias = tf.compat.v1.get_variable("bias", [16])
        return tf.reduce_sum(tf.nn.embedding_lookup(table, ids) + bias, axis=-1)


    def serve():
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        return {"item": ids}, {"score": score(ids)}


    hook = tfs.train.PublisherHook("/shared/published", serve, is_chief=is_chief)
    ```

    All replicas may have the hook; the chief's publishes. When its session ends in an
    orderly way, a last publication shows that moment. Put it behind a
    CheckpointSaverHook: after SIGTERM the time that is left is for the checkpoint.

    Args:
        directory: the folder, to which one training at a time may publish, and which
            all tasks share.
        serve: builds the model that serves, in a graph of its own, of TensorFlow's ops
            alone; returns its inputs, placeholders by name, and its outputs by name.
        every_secs: how often to publish, in seconds; 60 if neither this nor
            `every_n_steps` is given. While one is being written, no other is begun.
        every_n_steps: how often to publish, in steps of the global step, instead.
        is_chief: whether this replica is the chief.
        full_every: one publication of this many has a SavedModel.
        keep: how many of those with a SavedModel to keep, with all that follow them.
        max_kept_bytes: how much memory a parameter server may use to keep rows that are
            overwritten before they were written to the files; then updates wait.
        max_bytes_per_sec: how fast each parameter server may write. By default there is
            no limit.

    Attributes:
        publishing: the last publication that was begun; None before the first one. It
            is as in `tfs.keras.Publisher`.

    Raises:
        ValueError: an argument is out of range, or `directory` is a file. In `begin`:
            the chief cannot write to it, there is no global step, or `serve` does not
            build what can serve the graph that is trained. When its session is created:
            a parameter server cannot write to the folder, or writes elsewhere.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        serve: Callable[[], tuple[_Tensors, _Tensors]],
        every_secs: float | None = None,
        every_n_steps: int | None = None,
        *,
        is_chief: bool = True,
        full_every: int = 50,
        keep: int = 2,
        max_kept_bytes: int = 256 * 2**20,
        max_bytes_per_sec: float | None = None,
    ):
        self._is_chief = is_chief
        self._serve = serve
        self._calls: list[SessionCalls] = []
        self._writer = PublicationWriter(
            directory,
            self._make_calls,
            full_every,
            keep,
            max_kept_bytes,
            max_bytes_per_sec,
        )
        self._run = self._writer.interval(logging.error, every_secs, every_n_steps)
        self._run.make_due()
        self._session: Any = None

    @property
    def publishing(self) -> Saving | None:
        """The last publication that was begun; None before the first one."""
        return self._writer.last

    def begin(self) -> None:
        """Builds the graph that serves, and the ops that publish."""
        step = tf.compat.v1.train.get_global_step()
        if step is None:
            raise ValueError(
                "PublisherHook needs a global step: see "
                "tf.compat.v1.train.get_or_create_global_step."
            )
        if not self._is_chief:
            return
        self._writer.folder.check_writable()
        with tf.device(step.device):
            self._step = step.read_value()
        self._served = ServedGraph(self._serve)
        self._writer.prepare(self._served.contents)
        self._savings = SessionSavings(
            self._run, self._served.contents, self._publish, self._writer.wait
        )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Checks that the folder can be written to."""
        del coord
        if not self._is_chief:
            return
        if self._session is not None:
            self._savings.join()  # its session does not exist any more
            self._writer.wait()
        self._session = session
        for calls in self._calls:
            calls.session = session
        self._writer.check_writable(self._served.contents)

    def before_run(self, run_context: Any) -> Any:
        """Asks for the global step."""
        del run_context
        if not self._is_chief:
            return None
        return tf.compat.v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Begins a publication if it is time, and the first one at once."""
        del run_context
        if not self._is_chief:
            return
        self._savings.wait_if_local()
        self._savings.begin_if_due(int(run_values.results))

    def end(self, session: Any) -> None:
        """Publishes the end of the training."""
        if not self._is_chief:
            return
        self._savings.end_training(session)
        is_published = self._savings.save_last() is not None
        # Servers outlive this training, and would keep 8 bytes for each row for its
        # next publication.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            for calls in self._calls:
                calls.cancel()
        if not is_published:
            self._run.end_without_last()

    def _make_calls(self) -> SessionCalls:
        self._calls.append(SessionCalls(None))
        return self._calls[-1]

    def _publish(self, moment: Moment) -> Saving:
        session = self._session
        return self._writer.begin(
            self._served.contents,
            self._served,
            lambda: {"iterations": int(session.run(self._step))},
            moment,
        )
