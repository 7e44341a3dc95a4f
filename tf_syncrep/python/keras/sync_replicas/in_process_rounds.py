"""Rounds in one process: gradients of several batches make up an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.base import messages
from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.sync_replicas.rounds import Rounds, say_last_round
from tf_syncrep.python.keras.sync_replicas.targets import Targets
from tf_syncrep.python.sync import gradient_checks

# It applies gradients to variables.
Update = Callable[[Sequence[Any], Sequence[Any]], None]


class InProcessRounds(Rounds):
    """Collects gradients in accumulators of this process, and applies their mean.

    The gradients of an incomplete round are not saved with the optimizer.
    """

    def __init__(
        self,
        quorum: int,
        reject_nonfinite: bool,
        iterations: Any,
        update: Update,
        note: str | None = None,
    ):
        self._note = note
        self._reject_nonfinite = reject_nonfinite
        self._iterations = iterations
        self._update = update
        self._targets = Targets()
        with tf.init_scope():
            self._quorum, self._pending, self._updates, self._applied = (
                _counter(initial) for initial in (quorum, 0, 0, 0)
            )
            # The round's number grows with each update, and if gradients are dropped.
            self._round, self._rejected = _counter(0), _counter(0)
        # The last round whose gradients waited while rows of tables were removed.
        self._maintained_round = -1

    def receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if self._note is not None:
            logging.warning("%s", self._note)
            self._note = None
        self._targets.check(gradients, variables)
        checks = [
            gradient_checks.check_against(gradient, compat.native(variable))
            for gradient, variable in zip(gradients, variables, strict=True)
        ]

        def push() -> None:
            pushes = [
                accumulator.push(gradient, self._round.read_value())
                for accumulator, gradient in zip(
                    self._targets.accumulators, gradients, strict=True
                )
            ]
            with tf.control_dependencies(pushes):
                pending = self._pending.assign_add(1, read_value=True)
            tf.cond(pending >= self._quorum.read_value(), self._apply, lambda: None)

        with tf.control_dependencies([check for check in checks if check is not None]):
            if self._reject_nonfinite:
                tf.cond(
                    gradient_checks.all_finite(gradients),
                    push,
                    lambda: _add(self._rejected, 1),
                )
            else:
                push()

    def start(self) -> None:
        """Begins a training, to which gradients from before do not belong."""
        self.close()

    def num_done(self, num_taken: int) -> int:
        return max(0, num_taken - int(self._pending.numpy()))

    def finish(self, *, flush: bool) -> None:
        if flush:
            pending = int(self._pending.numpy())
            if pending:
                self._apply()
        else:
            pending = self.drop()
        if pending:
            say_last_round(pending, flush)

    def close(self) -> None:
        """Drops the gradients of a round that a training has left."""
        self.finish(flush=False)

    def drop(self) -> int:
        pending = int(self._pending.numpy())
        if pending:
            self._end_round()
        return pending

    def may_begin_maintenance(self) -> bool:
        """Returns whether rows of tables may be removed now: once in each round.

        While no gradient waits, rows may always be removed.
        """
        is_open = int(self._pending.numpy()) > 0
        return not is_open or int(self._round.numpy()) != self._maintained_round

    def begin_maintenance(self) -> None:
        if int(self._pending.numpy()) > 0:
            self._maintained_round = int(self._round.numpy())

    def configure(self, quorum: int, total: int) -> None:
        del total
        self._quorum.assign(quorum)

    def stats(self) -> dict[str, Any]:
        return {
            "step": int(self._iterations.numpy()),
            "quorum": int(self._quorum.numpy()),
            "updates": int(self._updates.numpy()),
            "applied": int(self._applied.numpy()),
            "pending": int(self._pending.numpy()),
            "rejected": int(self._rejected.numpy()),
            "workers": {},
        }

    def _apply(self) -> None:
        pending = self._pending.read_value()
        means = [
            accumulator.take(messages.join([self._round.read_value(), pending]))
            for accumulator in self._targets.accumulators
        ]
        self._update(means, self._targets.variables)
        _add(self._updates, 1)
        _add(self._applied, pending)
        self._end_round()

    def _end_round(self) -> None:
        _add(self._round, 1)
        self._pending.assign(0, read_value=False)


def _counter(initial: int) -> tf.Variable:
    return tf.Variable(tf.constant(initial, tf.int64), trainable=False)


def _add(counter: tf.Variable, value: Any) -> None:
    counter.assign_add(value, read_value=False)
