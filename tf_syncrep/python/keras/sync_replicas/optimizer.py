"""SyncReplicas: synchronous training with any Keras optimizer."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import cluster, compat
from tf_syncrep.python.keras.sync_replicas.cluster_ops import ClusterOps
from tf_syncrep.python.keras.sync_replicas.cluster_rounds import ClusterRounds
from tf_syncrep.python.keras.sync_replicas.in_process_rounds import InProcessRounds
from tf_syncrep.python.keras.sync_replicas.rounds import (
    Observer,
    RefusedRounds,
    Rounds,
)
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import (
    RoundsOptimizer,
    ending,
)
from tf_syncrep.python.sync.arguments import as_python, check_count, check_positive

__all__ = ["SyncReplicas"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class SyncReplicas(RoundsOptimizer):
    r"""Makes the workers of a ParameterServerStrategy train synchronously.

    Each worker computes a gradient on the present weights; when
    `replicas_to_aggregate` gradients are in, their mean is applied, once, by the
    inner optimizer, and all go on with the new weights:

    $$w \leftarrow w - \mathrm{inner}\Big(\frac{1}{N} \sum_{i=1}^{N} g_i(w)\Big)$$

    A gate on a parameter server decides whose gradient counts. Every variable of an
    update averages the same gradients; none is applied twice; nobody waits for a
    worker that is gone. With `total_num_replicas` above `replicas_to_aggregate` the
    rest are backups: the slowest gradients of each round are dropped. A worker that
    is fast may give several gradients of a round.

    Clipping, weight decay, moving averages, schedules and `iterations` are the inner
    optimizer's, and belong to the update: `iterations` counts updates, not batches.

    ```python
    with strategy.scope():  # a tf.distribute.ParameterServerStrategy
        model = build_model()
        optimizer = tfs.keras.SyncReplicas(
            tfs.keras.AdamAsync(1e-3), replicas_to_aggregate=4
        )
        model.compile(optimizer, loss="binary_crossentropy")
    tfs.keras.fit(model, dataset, steps_per_epoch=1000, epochs=3)
    ```

    A custom loop says the same with `step` and `updater`:

    ```python
    @tf.function
    def train_step(iterator):
        batch = next(iterator)
        with optimizer.step():  # before any variable is read
            ...
            optimizer.apply_gradients(zip(gradients, variables))

    with optimizer.updater(strategy):
        for _ in range(1000):
            coordinator.schedule(train_step, args=(per_worker_iterator,))
        coordinator.join()
    ```

    Without a strategy, in one process, it does what `GradientAccumulation` does, and
    says so once: each `replicas_to_aggregate` batches make up one update. Under any
    other strategy, which is synchronous by itself, a model that was compiled with it
    can be loaded, evaluated and saved, but not trained.

    Args:
        inner_optimizer: the Keras optimizer that applies the means, or its name.
        replicas_to_aggregate: how many gradients make up an update.
        total_num_replicas: how many workers take part; by default those of the
            cluster, so that a fifth one is a backup where four gradients make up an
            update.
        lease_secs: after how many silent seconds a worker is taken for dead. One that
            has come back from a longer silence is waited for twice as long as that,
            twice `start_secs` at most.
        start_secs: the same before its first gradient, at most: once as many workers
            have given theirs as compute it, it is four times the longest that one of
            those took, and `lease_secs` at least.
        reject_nonfinite: whether a gradient with a NaN or an infinity in it is dropped
            instead of applied.
        spares: whether a worker that has nothing to do computes a gradient in the place
            of one whose step takes much longer than steps usually do. Of the two the
            first counts, and the other is dropped. Without, the others wait for a slow
            worker, up to `lease_secs`; while nothing fails, and there are no backups,
            every gradient then counts.
        flush_last: whether a last incomplete round is applied, as the mean of the
            gradients that are there, at the end of training; otherwise they are
            dropped.
        name: the optimizer's name.

    Raises:
        ValueError: an argument out of range, or an inner optimizer that cannot be one.

    Source: Chen et al., "Revisiting Distributed Synchronous SGD", 2016
    (https://arxiv.org/abs/1604.00981).
    """

    def __init__(
        self,
        inner_optimizer: Any,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        *,
        lease_secs: float = 60.0,
        start_secs: float = 600.0,
        reject_nonfinite: bool = False,
        spares: bool = True,
        flush_last: bool = True,
        name: str = "SyncReplicas",
    ):
        super().__init__(inner_optimizer, name)
        self.replicas_to_aggregate: int = check_count(
            "replicas_to_aggregate", replicas_to_aggregate
        )
        # As it was given, and so saved: another cluster may have other workers.
        self._given_total = as_python(total_num_replicas)
        if total_num_replicas is None:
            total_num_replicas = cluster.num_tasks("worker") or replicas_to_aggregate
        self.total_num_replicas: int = check_count(
            "total_num_replicas", total_num_replicas
        )
        self.lease_secs: float = check_positive("lease_secs", lease_secs)
        self.start_secs: float = check_positive("start_secs", start_secs)
        self.reject_nonfinite: bool = bool(reject_nonfinite)
        self.spares: bool = bool(spares)
        self.flush_last: bool = bool(flush_last)
        self._strategy = tf.distribute.get_strategy()
        self._rounds = self._make_rounds()

    def _make_rounds(self) -> Rounds:
        """The rounds that there are under the strategy in whose scope this is made."""
        iterations = compat.native(self.iterations)
        if isinstance(self._strategy, tf.distribute.ParameterServerStrategy):
            if self._strategy.num_replicas_in_sync > 1:
                return RefusedRounds(
                    "SyncReplicas needs workers with at most one GPU each. Received: "
                    f"workers with {self._strategy.num_replicas_in_sync}."
                )
            ops = ClusterOps(
                self.replicas_to_aggregate,
                self.total_num_replicas,
                self.lease_secs,
                self.start_secs,
                self.reject_nonfinite,
                self.spares,
                device=iterations.device,
            )
            return ClusterRounds(
                ops, self._strategy, self.inner_optimizer, self._update
            )
        if tf.distribute.has_strategy():
            return RefusedRounds(
                "SyncReplicas trains under ParameterServerStrategy, or without any "
                f"strategy. Received: {type(self._strategy).__name__}. Use the inner "
                "optimizer alone: that strategy is synchronous by itself."
            )
        return InProcessRounds(
            self.replicas_to_aggregate,
            self.reject_nonfinite,
            iterations,
            self._update,
            note="SyncReplicas trains in this process alone: each "
            f"{self.replicas_to_aggregate} batches make up one update. "
            "tfs.keras.GradientAccumulation says so by its name; "
            "`optimizer.inner_optimizer` makes an update of each batch.",
        )

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """The train step of a custom loop, in the function that is scheduled.

        What is inside begins when the gate has permitted it. Variables that were read
        before may be out of date. Gradients are handed in by `apply_gradients` (or
        `apply`), at most once. Without a strategy it does nothing.

        Yields:
            Nothing.

        Raises:
            RuntimeError: a step within a step.
        """
        with self._rounds.step():
            yield

    @contextlib.contextmanager
    def updater(self, strategy: Any = None) -> Iterator["RunningUpdates"]:
        """Runs the updates of a custom loop, in the coordinator, around the loop.

        On a regular end it completes what is under way and applies, or drops, a last
        incomplete round; the loop must have joined its closures by then.

        Args:
            strategy: the `tf.distribute.ParameterServerStrategy`; by default the one
                that the optimizer was made under.

        Yields:
            What has a `drain()`, which waits until no update is under way.

        Raises:
            ValueError: another strategy, or none.
            RuntimeError: updates are being run already.
            tf.errors.OpError: an update failed.
        """
        if strategy is not None and strategy is not self._strategy:
            raise ValueError(
                "`strategy` must be the one that the optimizer was made under. "
                f"Received: strategy={strategy}"
            )
        if self._rounds.is_training:
            raise RuntimeError(
                "SyncReplicas is training already: one `fit`, or one `updater()`, at a "
                "time."
            )
        with ending(self._rounds):
            self._rounds.start()
            yield RunningUpdates(self._rounds)
            self._rounds.finish(flush=self.flush_last)

    def add_observer(self, observer: Observer) -> None:
        """Has a function called when a training begins, and after each update.

        It is called on the coordinator, in the thread that makes the updates, and has
        to return at once: the workers wait meanwhile. What it raises is logged, and it
        is not called again. Without ParameterServerStrategy it is never called.

        Args:
            observer: a function of `iterations`, an int.
        """
        self._rounds.add_observer(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Stops calling a function that was given to `add_observer`.

        Args:
            observer: the function.
        """
        self._rounds.remove_observer(observer)

    def configure(self, replicas_to_aggregate: int, total_num_replicas: int) -> None:
        """Changes the numbers of the constructor, also while training runs.

        Args:
            replicas_to_aggregate: how many gradients make up an update, from the next
                round on.
            total_num_replicas: how many workers take part.

        Raises:
            ValueError: an argument out of range.
        """
        quorum = check_count("replicas_to_aggregate", replicas_to_aggregate)
        total = check_count("total_num_replicas", total_num_replicas)
        self._rounds.configure(quorum, total)
        self.replicas_to_aggregate, self.total_num_replicas = quorum, total
        self._given_total = total

    def stats(self) -> dict[str, Any]:
        """Reads the counters, which go on from one training to the next.

        Returns:
            Numbers by name: "step" (`iterations`), "quorum", "updates", and of
            gradients "applied", "pending" and "rejected". Under
            ParameterServerStrategy also "admitted", "committed", "late" (dropped, the
            round had enough), "stale" (dropped, of an earlier round), "voided",
            "expired" and more; and under "workers" each worker's own, by its task,
            with "waited_secs".
        """
        return self._rounds.stats()

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` makes an equal optimizer of."""
        return {
            "name": self.name,
            "inner_optimizer": tf.keras.optimizers.serialize(self.inner_optimizer),
            "replicas_to_aggregate": self.replicas_to_aggregate,
            "total_num_replicas": self._given_total,
            "lease_secs": self.lease_secs,
            "start_secs": self.start_secs,
            "reject_nonfinite": self.reject_nonfinite,
            "spares": self.spares,
            "flush_last": self.flush_last,
        }


class RunningUpdates:
    """The updates of a custom loop, while they are being made."""

    def __init__(self, rounds: Rounds):
        """Made by `SyncReplicas.updater`."""
        self._rounds = rounds

    def drain(self) -> None:
        """Waits until no gradient is on its way and no full round unapplied.

        Raises:
            tf.errors.OpError: an update failed.
        """
        self._rounds.drain()
