"""The session hook of SyncReplicasOptimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.compat.v1 import logging

from tf_syncrep.python.base import said_waits
from tf_syncrep.python.base.arguments import check_count
from tf_syncrep.python.sync import gate_stats
from tf_syncrep.python.v1.sync_replicas import information, session_errors


class SyncReplicasOptimizerHook(tf.compat.v1.train.SessionRunHook):
    """Opens the gate, applies the gradients, and closes or leaves the gate.

    Made by `SyncReplicasOptimizer.make_session_run_hook`.

    `stats`: the result of `SyncReplicasOptimizer.stats` at the end of the session, when
    it cannot be called any more; empty before.
    """

    def __init__(self, optimizer, is_chief, num_tokens, log_every_n_steps, summary_dir):
        """Creates the hook; it needs the graph only when the session begins."""
        self._optimizer = optimizer
        self._is_chief = is_chief
        self._num_tokens = num_tokens
        if log_every_n_steps:
            check_count("log_every_n_steps", log_every_n_steps)
        self._log_every_n_steps = log_every_n_steps
        self._summary_dir = summary_dir
        self._steps = 0
        self._summary_writer = None
        self.stats: dict[str, Any] = {}

    def begin(self):
        """Takes the optimizer's ops from the graph."""
        optimizer = self._optimizer
        if optimizer._built is None:
            raise ValueError(
                "SyncReplicasOptimizer.apply_gradient should be called before using "
                "the hook."
            )
        self._ops = optimizer._built
        self._ready_for_local_init_op = optimizer.ready_for_local_init_op
        if self._is_chief:
            self._local_init_op = optimizer.chief_init_op
            self._init_tokens_op = optimizer.get_init_tokens_op(self._num_tokens)
            self._queue_runner = self._ops.hooks_queue_runner
            self._end_op = self._ops.close_op
            if self._summary_dir is not None:
                self._summary_writer = tf.compat.v1.summary.FileWriterCache.get(
                    self._summary_dir
                )
        else:
            self._local_init_op = optimizer.local_step_init_op
            self._init_tokens_op = None
            self._queue_runner = None
            self._end_op = self._ops.leave_op

    def after_create_session(self, session, coord):
        """Opens the gate, or waits for its opening, and starts the chief's part."""
        session_errors.recover_from_lost_tasks(session)
        uninitialized = session.run(self._ready_for_local_init_op)
        if len(uninitialized):
            names = ", ".join(name.decode() for name in uninitialized)
            raise RuntimeError(
                "Init operations did not make model ready for SyncReplicasOptimizer "
                f"local_init. Init op: {self._local_init_op.name}, error: "
                f"Variables not initialized: {names}"
            )
        if self._is_chief:
            for prepare in self._optimizer._before_opening:
                prepare(session)
            session.run(self._local_init_op)
        else:
            self._wait_for_training(session)
        if self._init_tokens_op is not None:
            session.run(self._init_tokens_op)
        if self._queue_runner is not None:
            self._queue_runner.create_threads(
                session, coord=coord, daemon=True, start=True
            )

    def _wait_for_training(self, session):
        """Waits until the gate lets this replica train, and says for what it waits."""
        has_ended = False

        def describe():
            nonlocal has_ended
            stats = self._optimizer.stats(session)
            has_ended = bool(stats["closed"])
            if has_ended:
                start_secs = self._optimizer._settings.start_secs
                return (
                    "SyncReplicas: the training on these parameter servers has ended, "
                    f"at global step {stats['step']}. This replica waits for a chief "
                    f"that begins another one, for start_secs={start_secs:g} at most."
                )
            if not stats["generation"]:
                return (
                    "SyncReplicas: this replica waits for its chief, which has not "
                    "begun the training yet."
                )
            return None

        with said_waits.said(describe):
            session.run(self._local_init_op)
        if has_ended and self._optimizer.stats(session)["closed"]:
            logging.warning(
                "SyncReplicas: no chief has begun another training. This replica ends "
                "without having trained."
            )

    def after_run(self, run_context, run_values):
        """Reports at the set interval, if this is the chief."""
        del run_values
        self._steps += 1
        if (
            self._is_chief
            and self._log_every_n_steps
            and self._steps % self._log_every_n_steps == 0
        ):
            self._report(self._optimizer.stats(run_context.session))

    def end(self, session):
        """Ends the training of all replicas as the chief; leaves it otherwise."""
        self.stats = self._optimizer.stats(session)
        if self._is_chief:
            self._report(self.stats)
        session.run(self._end_op)
        self._ops.departures.note_told(session)

    def _report(self, stats: dict[str, Any]) -> None:
        if self._log_every_n_steps:
            information.info("SyncReplicas: %s", gate_stats.to_line(stats))
        if self._summary_writer is not None:
            summary = tf.compat.v1.Summary(
                value=[
                    tf.compat.v1.Summary.Value(tag=tag, simple_value=value)
                    for tag, value in gate_stats.to_scalars(stats).items()
                ]
            )
            self._summary_writer.add_summary(summary, stats["step"])
            self._summary_writer.flush()
