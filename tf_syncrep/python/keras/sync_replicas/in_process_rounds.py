"""SyncReplicas in one process: gradients of several batches make up an update."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.sync import gradient_checks, messages
from tf_syncrep.python.sync.gradient_accumulators import kind_of, make_accumulator

# Applies gradients to variables.
Update = Callable[[Sequence[Any], Sequence[Any]], None]


class InProcessRounds:
    """Collects gradients in accumulators of this process, and applies their mean.

    What has been collected of a round is not saved with the optimizer.
    """

    def __init__(self, quorum: int, reject_nonfinite: bool, update: Update):
        """Makes the counters.

        Args:
            quorum: how many gradients make up an update.
            reject_nonfinite: whether gradients with a NaN or an infinity are dropped.
            update: called with the means and their variables, perhaps in a
                branch of a graph.
        """
        self._reject_nonfinite = reject_nonfinite
        self._update = update
        self._lock = threading.Lock()  # Guards _accumulators while graphs are built.
        self._accumulators: dict[int, Any] = {}
        self._pairs: list[tuple[Any, Any]] = []
        with tf.init_scope():
            self._quorum, self._pending, self._updates, self._applied = (
                _counter(initial) for initial in (quorum, 0, 0, 0)
            )
            # Goes up with each update and each round that is dropped.
            self._round, self._rejected = _counter(0), _counter(0)

    def receive(
        self, gradients: Sequence[Any], variables: Sequence[Any], natives: Sequence[Any]
    ) -> None:
        """Takes the gradients of a batch, and makes an update if the round is full.

        Args:
            gradients: one for each variable.
            variables: as the optimizer got them.
            natives: the same as TensorFlow's variables.
        """
        accumulators = [
            self._accumulator(gradient, native)
            for gradient, native in zip(gradients, natives, strict=True)
        ]
        checks = [
            gradient_checks.check_against(gradient, native)
            for gradient, native in zip(gradients, natives, strict=True)
        ]

        def push() -> None:
            pushes = [
                accumulator.push(gradient, self._round.read_value())
                for accumulator, gradient in zip(accumulators, gradients, strict=True)
            ]
            with tf.control_dependencies(pushes):
                pending = self._pending.assign_add(1, read_value=True)
            tf.cond(
                pending >= self._quorum.read_value(),
                lambda: self._apply(accumulators, variables),
                lambda: None,
            )

        with tf.control_dependencies([check for check in checks if check is not None]):
            if self._reject_nonfinite:
                tf.cond(
                    gradient_checks.all_finite(gradients),
                    push,
                    lambda: _add(self._rejected, 1),
                )
            else:
                push()
        self._pairs = list(zip(accumulators, variables, strict=True))

    def flush(self) -> int:
        """Applies what a last incomplete round holds.

        Returns:
            How many gradients that were.
        """
        pending = int(self._pending.numpy())
        if pending:
            accumulators, variables = zip(*self._pairs, strict=True)
            self._apply(accumulators, variables)
        return pending

    def drop(self) -> int:
        """Discards what a last incomplete round holds.

        Returns:
            How many gradients that were.
        """
        pending = int(self._pending.numpy())
        if pending:
            self._end_round()
        return pending

    def configure(self, quorum: int) -> None:
        """Changes how many gradients make up an update.

        Args:
            quorum: as in the constructor.
        """
        self._quorum.assign(quorum)

    def stats(self) -> dict[str, Any]:
        """Returns the counters, under the names that a gate gives them."""
        return {
            "quorum": int(self._quorum.numpy()),
            "updates": int(self._updates.numpy()),
            "applied": int(self._applied.numpy()),
            "pending": int(self._pending.numpy()),
            "rejected": int(self._rejected.numpy()),
            "workers": {},
        }

    def _accumulator(self, gradient, native):
        key, kind = id(native), kind_of(gradient)
        with self._lock:
            if key not in self._accumulators:
                with tf.init_scope():
                    accumulator = make_accumulator(
                        kind, native, shared_name=None, sparse_reduction_type="CMEAN"
                    )
                # The variable is kept so that its id stays its own.
                self._accumulators[key] = kind, accumulator, native
            known, accumulator, _ = self._accumulators[key]
        if kind != known:
            raise ValueError(
                f"All gradients of {native.name} must be of one kind. "
                f"Received: {kind}, after {known}."
            )
        return accumulator

    def _apply(self, accumulators, variables) -> None:
        pending = self._pending.read_value()
        means = [
            accumulator.take(messages.join([self._round.read_value(), pending]))
            for accumulator in accumulators
        ]
        self._update(means, variables)
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
