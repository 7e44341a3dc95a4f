"""Rounds of a cluster: workers ask a gate, and a thread of the coordinator updates."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.sync_replicas.cluster.cluster_ops import ClusterOps, Permit
from tf_syncrep.python.keras.sync_replicas.cluster.ordering import effects_after
from tf_syncrep.python.keras.sync_replicas.cluster.updater import Updater
from tf_syncrep.python.keras.transfers.transfers import few_messages
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync import gate_stats


class ClusterRounds(Updater):
    """Rounds under ParameterServerStrategy: its base class, and steps of workers."""

    maintains_tables = True

    def __init__(
        self,
        ops: ClusterOps,
        strategy: Any,
        optimizer: Any,
        update: Callable[[Any, Any], None],
    ):
        super().__init__(ops, strategy, optimizer, update)
        self._permits = _Permits()
        # How many gradients had arrived when the epoch began, except for those of its
        # own steps.
        self._num_before = 0

    def place(self, variables: Sequence[Any]) -> None:
        """Places the gate where most trained bytes are, unless it has been made."""
        self._ops.place_gate(variables)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Builds the wait for a permit; all reads and effects inside come after it.

        Raises RuntimeError: it was called within a step.
        """
        if self._permits.current() is not None:
            raise RuntimeError("SyncReplicas.step() must not be nested.")
        with few_messages():
            permit = self._ops.acquire()
            with self._permits.holding(permit), effects_after(permit.round):
                try:
                    yield
                finally:
                    if not permit.used:
                        self._ops.give_back(permit)

    def receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        permit = self._permits.current()
        if permit is None:
            raise RuntimeError(
                "SyncReplicas trains under ParameterServerStrategy by `tfs.keras.fit`, "
                "by `model.fit` after `tfs.keras.install_fit()`, or, in a custom loop, "
                "by `with optimizer.step():` in the scheduled function and "
                "`with optimizer.updater(strategy):` around the loop."
            )
        if permit.used:
            raise RuntimeError(
                "SyncReplicas takes gradients once in a step: apply those of all "
                "variables in one call."
            )
        self._ops.contribute(permit, gradients, variables)

    def start(self) -> None:
        compat.isolate_workers()
        self.close()  # An error may have ended the training before.
        super().start()

    def begin_epoch(self, first_step: int) -> None:
        stats = self._own_stats()
        self._num_before = _num_decided(stats) + stats["pending"] - first_step

    def num_done(self, num_taken: int) -> int:
        """Returns how many batches of an epoch are done, between two updates.

        The gate knows this better than `fit`, which has not heard of all batches yet.
        """
        del num_taken
        return max(0, _num_decided(self._own_stats()) - self._num_before)

    def drop(self) -> int:
        """Drops the gradients of the open round, and of the permits that are out."""
        training = self._under_way
        if training is None or training.error is not None:
            return 0
        pending = self._own_stats()["pending"]
        step = tf.cast(self._iterations.read_value(), tf.int64)
        training.generation = self._open_fn(step)
        return pending

    def configure(self, quorum: int, total: int) -> None:
        self._ops.at_gate(sync_gate_ops.sync_gate_configure, quorum, total)

    def stats(self) -> dict[str, Any]:
        with self._said():
            stats = self._ops.at_gate(sync_gate_ops.sync_gate_stats)
            return gate_stats.to_dict(*(x.numpy() for x in stats))

    def _own_stats(self) -> dict[str, Any]:
        """Returns the gate's counters, read apart from the steps of other threads."""
        with compat.apart_from_closures():
            return self.stats()


def _num_decided(stats: dict[str, Any]) -> int:
    """Returns how many gradients were applied, or dropped."""
    return sum(stats[x] for x in ("applied", "late", "stale", "rejected", "voided"))


class _Permits:
    """The permits of the steps that are being traced.

    A permit belongs to the function that is being traced: `strategy.run` traces its
    argument in another thread, but into the same graph. Outside functions a permit
    belongs to the thread.
    """

    def __init__(self):
        # At any time a graph is traced by one thread, and by those that this one
        # starts.
        self._permits: weakref.WeakKeyDictionary[Any, Permit] = (
            weakref.WeakKeyDictionary()
        )

    def current(self) -> Permit | None:
        """Returns the permit of the function being traced, or of one around it."""
        owner = _owner_of_permits()
        while owner is not None:
            if owner in self._permits:
                return self._permits[owner]
            owner = getattr(owner, "outer_graph", None)
        return None

    @contextlib.contextmanager
    def holding(self, permit: Permit) -> Iterator[None]:
        """Makes a permit the current one."""
        owner = _owner_of_permits()
        self._permits[owner] = permit
        try:
            yield
        finally:
            del self._permits[owner]


def _owner_of_permits() -> Any:
    if tf.executing_eagerly():
        return threading.current_thread()
    return tf.compat.v1.get_default_graph()
