"""Checkpoints of `tf.compat.v1` sessions that do not stop the training."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1 import logging

from tf_syncrep.python.base import said_waits
from tf_syncrep.python.checkpoint.directory import Directory
from tf_syncrep.python.checkpoint.engine import Engine, Moment, Options, Saving
from tf_syncrep.python.checkpoint.notice import Notice
from tf_syncrep.python.checkpoint.run import Run
from tf_syncrep.python.checkpoint.state import check_queues, restore_queues, states_of
from tf_syncrep.python.checkpoint.warm_report import WarmStartReport
from tf_syncrep.python.checkpoint.warm_terms import Terms, arguments_of
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.v1.checkpoint.contents import contents_of_graph
from tf_syncrep.python.v1.checkpoint.session_calls import SessionCalls
from tf_syncrep.python.v1.checkpoint.session_savings import SessionSavings
from tf_syncrep.python.v1.checkpoint.warm_start import PreparedWarmStart
from tf_syncrep.python.v1.sync_replicas.optimizer import optimizers_of_graph

__all__ = ["CheckpointSaverHook"]

# How often a replica asks whether the chief has restored.
_ASK_SECS = 0.2

# The graph's collection with the folder of its hook.
_FOLDERS = "tf_syncrep_checkpoint_folders"


class CheckpointSaverHook(tf.compat.v1.train.SessionRunHook):
    """Writes checkpoints while training goes on, and continues from the last one.

    Each parameter server writes its own variables to its own files, a few MiB at a
    time, beside the training. All replicas have the hook. The chief's hook writes the
    checkpoints, and restores the newest whole one whenever a session is created, also
    after a parameter server was lost; the other replicas wait for that:

    ```python
    hook = tfs.train.CheckpointSaverHook("/shared/run1", 600, is_chief=is_chief)
    with tf.compat.v1.train.MonitoredTrainingSession(
        master,
        is_chief=is_chief,
        hooks=[optimizer.make_session_run_hook(is_chief), hook],
    ) as session:
        while not session.should_stop():
            session.run(train_op)
    ```

    It replaces `checkpoint_dir` of MonitoredTrainingSession, which must not be given.
    With a SyncReplicasOptimizer in the graph, a checkpoint shows one moment, between
    two updates, bit for bit. With none, or more than one, each row of a table is whole
    if whoever updates it takes its lock, as AdamAsync does, and TensorFlow's optimizers
    with `use_locking`; but some rows are some steps older than others.

    A full checkpoint `ckpt-7` is one of TensorFlow's, with the names that
    `tf.compat.v1.train.Saver` uses: a Saver of the graph restores it, and
    `tf.train.load_checkpoint` reads it. When the chief's session ends in an orderly
    way, a last checkpoint shows that moment. At SIGTERM a replica's session ends after
    its step, in that way, and then the program, by `SystemExit` with status 143; put
    the hook behind others, which would not hear of the end.

    Args:
        checkpoint_dir: the folder, the same for all tasks, of one training at a time.
        save_secs: how often to write one, in seconds. By default, if `save_steps` is
            not given either, every 600 seconds.
        save_steps: how often to write one, in steps of the global step, instead of
            `save_secs`. While one is being written, no other is begun.
        is_chief: whether this replica is the chief.
        keep: how many to keep. Those on which they build are kept, too, and beside them
            the newest one if its weights are not finite; no session restores that one.
        full_every: one checkpoint of this many is full; the others hold only those rows
            of tables that have changed since the checkpoint before.
        work_queues: `tfs.data.WorkQueue`s by name, which are saved and restored, too.
        max_kept_bytes: how much memory a parameter server may use to keep rows that are
            overwritten before they were written to the files; then updates wait.
        max_bytes_per_sec: how fast each parameter server may write. By default there is
            no limit.
        warm_start: where the folder has no checkpoint when the graph is made, variables
            begin with what fits them of this source; or a dict of the arguments of
            `tfs.train.warm_start`, `{"source": "/shared/run1", "skip": "logits"}`.
        raise_at_end: whether `end`, and so the session that ends, raises an error if
            the last checkpoint was not written. By default the log says so, and how
            many were written.

    Attributes:
        saving: the last checkpoint that was begun; None before the first one. It has
            `is_over`, `error` (None if there is none), `wait()`, `bytes_written`,
            `secs` (how long it took), and `manifest`, which is None until it is
            complete.
        restored: the prefix of the checkpoint that was restored last, or None.
        warm_started: what `tfs.train.warm_start` returned last, or None.

    Raises:
        ValueError: an argument is out of range, or `checkpoint_dir` is a file. In
            `begin`: the chief cannot write to it, the graph has such a hook already,
            there is no global step, or a variable has parts that are not ranges of
            rows. When its session is created: a parameter server cannot write to it, or
            writes elsewhere, or the newest checkpoint is of another graph.
        Exception: when its session is created, there are checkpoints, but none is
            whole; the message says what is wrong with each.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        save_secs: float | None = None,
        save_steps: int | None = None,
        *,
        is_chief: bool = True,
        keep: int = 3,
        full_every: int = 1,
        work_queues: Mapping[str, Any] | None = None,
        max_kept_bytes: int = 256 * 2**20,
        max_bytes_per_sec: float | None = None,
        raise_at_end: bool = False,
        warm_start: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    ):
        self._is_chief = is_chief
        self._queues = check_queues(work_queues)
        self._directory = Directory(checkpoint_dir, "checkpoint_dir")
        self._run = Run(
            self._directory,
            logging.error,
            bool(raise_at_end),
            save_secs=save_secs,
            save_steps=save_steps,
        )
        self._options = Options(keep, full_every, max_kept_bytes, max_bytes_per_sec)
        self._savings: SessionSavings | None = None
        self.restored: str | None = None
        self._warm_start = arguments_of(warm_start)
        self._prepared: PreparedWarmStart | None = None
        self.warm_started: WarmStartReport | None = None
        self._session: Any = None  # the session into which it restored
        self._notice: Notice | None = None
        self._is_over = threading.Event()  # the session has ended in an orderly way

    @property
    def saving(self) -> Saving | None:
        """The last checkpoint that was begun; None before the first one."""
        return None if self._savings is None else self._savings.saving

    def begin(self) -> None:
        """Builds the ops, and checks what the class says of `begin`."""
        self._global_step = tf.compat.v1.train.get_global_step()
        if self._global_step is None:
            raise ValueError(
                "CheckpointSaverHook needs a global step: see "
                "tf.compat.v1.train.get_or_create_global_step."
            )
        folders = tf.compat.v1.get_collection_ref(_FOLDERS)
        if folders:
            raise ValueError(
                "A graph takes one CheckpointSaverHook, and has one with "
                f"checkpoint_dir={folders[0]!r}. Received another one with "
                f"checkpoint_dir={self._directory.path!r}"
            )
        with tf.device(self._global_step.device):
            self._step = self._global_step.read_value()
        self._contents, saver = contents_of_graph()
        self._make_marker([share.device for share in self._contents.shares])
        folders.append(self._directory.path)
        if not self._is_chief:
            return
        self._directory.check_writable()
        if self._warm_start is not None and not self._directory.newest_number():
            source = self._warm_start["source"]
            terms = {x: y for x, y in self._warm_start.items() if x != "source"}
            self._prepared = PreparedWarmStart(source, Terms(**terms))
        self._calls = SessionCalls(saver)
        self._engine = Engine(self._directory, self._calls, self._options)
        self._engine.prepare(self._contents)
        self._savings = SessionSavings(
            self._run, self._contents, self._begin_saving, self._engine.wait
        )
        for optimizer in optimizers_of_graph():
            # The hook whose session is created first restores.
            optimizer.before_opening(self._restore)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Restores the newest checkpoint, or waits until the chief has restored it."""
        if self._is_chief:
            self._restore(session)
        else:
            line = (
                "CheckpointSaverHook: this replica waits for the chief's hook, which "
                f"restores the newest checkpoint in {self._directory.path}, if there "
                "is one."
            )
            with said_waits.said(lambda: line):
                while not (coord.should_stop() or self._is_marked(session)):
                    coord.wait_for_stop(_ASK_SECS)
        self._listen(coord)

    def before_run(self, run_context: Any) -> Any:
        """Asks for the global step."""
        del run_context
        if self._is_chief:
            return tf.compat.v1.train.SessionRunArgs(self._step)
        return None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Begins a checkpoint if it is time; stops if the program is to end."""
        ends = self._notice is not None and self._notice.is_given
        if ends:
            run_context.request_stop()
        if self._savings is None:
            return
        self._savings.wait_if_local()
        step = int(run_values.results)
        self._run.progress.note(step)
        if not ends:  # The last one is of this step, if there is time for it.
            self._savings.begin_if_due(step)

    def end(self, session: Any) -> None:
        """Writes a last checkpoint, of the end of the training."""
        if self._savings is not None:
            self._end_training(session, self._savings)
            if self._notice is not None and self._notice.is_given:
                self._notice.say_next(self._directory)
        self._is_over.set()
        if self._notice is not None:
            self._notice.end()
            if self._notice.is_given:
                self._notice.leave()

    def _listen(self, coord: Any) -> None:
        """Listens for SIGTERM as long as a session lives."""
        if self._notice is not None:
            self._notice.end()
            if self._notice.is_given:
                return  # The session has taken the place of one that was lost.
        notice = self._notice = Notice()
        is_over = self._is_over = threading.Event()
        notice.begin()

        def watch() -> None:
            while not notice.is_given and not coord.wait_for_stop(_ASK_SECS):
                pass
            # Nobody may ask any more: a session that is lost has no `end`.
            notice.end()
            if notice.is_given:
                notice.say_stop("this session")
                notice.end_process_unless(is_over)

        threading.Thread(target=watch, name="notice", daemon=True).start()

    def _has_time(self) -> bool:
        """Returns whether there is the time for another checkpoint."""
        notice = self._notice
        if notice is None or not notice.is_given:
            return True
        return notice.has_time(self._engine.expected_secs())

    def _end_training(self, session: Any, savings: SessionSavings) -> None:
        savings.end_training(session)
        is_tried = self._has_time()
        manifest = savings.save_last() if is_tried else None
        # Servers outlive this training, and would keep 8 bytes for each row for its
        # next checkpoint.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            self._calls.cancel()
        if manifest is not None:
            self._run.progress.end(manifest.state["global_step"])
        elif is_tried:
            self._run.end_without_last()

    def _begin_saving(self, moment: Moment) -> Saving:
        session = self._session

        def state() -> dict[str, Any]:
            return {
                "global_step": int(session.run(self._step)),
                "work_queues": states_of(self._queues, session),
            }

        return self._engine.begin(self._contents, state, moment)

    def _restore(self, session: Any) -> None:
        """Restores into a session, once."""
        if session is self._session:
            return
        if self._savings is not None:
            self._savings.join()  # its session does not exist any more
        self._engine.wait()
        self._calls.session = session
        self._engine.check_writable(self._contents)
        manifest = self._engine.restore(self._contents)
        if manifest is None and self._prepared is not None:
            self.warm_started = self._prepared.run(session)
        step = int(session.run(self._step))
        if manifest is not None:
            restore_queues(self._queues, manifest, session)
            self.restored = self._directory.prefix(manifest.number)
            logging.warning(
                "Training goes on from %s, at global step %d: as far as the chief has "
                "seen, %s.",
                self.restored,
                step,
                self._run.progress.lost_since(manifest, step),
            )
        self._session = session
        self._run.progress.begin(step)
        self._run.begin_interval(step)
        session.run(self._mark)

    # --- Replicas that wait for the chief ---

    def _make_marker(self, devices: Sequence[str]) -> None:
        """Makes variables that tell for which incarnations the chief has restored."""
        lives = []
        for device in devices:
            with tf.device(device):
                lives.append(sync_gate_ops.task_id()[1])
        # All replicas find it by its name, whatever the scope in which the hook begins.
        scope = tf.compat.v1.VariableScope(reuse=tf.compat.v1.AUTO_REUSE)
        with (
            tf.device(self._global_step.device),
            tf.compat.v1.variable_scope(scope, auxiliary_name_scope=False),
        ):
            marker = tf.compat.v1.get_variable(
                "tf_syncrep_checkpoint_restored",
                initializer=tf.zeros([len(lives)], tf.int64),
                trainable=False,
                collections=[],
                use_resource=True,
            )
            now = tf.stack(lives)
            self._mark = marker.assign(now).op
            self._marked = tf.reduce_all(tf.equal(marker.read_value(), now))

    def _is_marked(self, session: Any) -> bool:
        try:
            return bool(session.run(self._marked))
        except tf.errors.FailedPreconditionError:  # the variable is not initialized
            return False
