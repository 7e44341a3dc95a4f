"""SyncReplicas: synchronous training with any Keras optimizer."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import tensorflow as tf

from tf_syncrep.python.base.arguments import as_python, check_count, check_positive
from tf_syncrep.python.keras import cluster, compat
from tf_syncrep.python.keras.sync_replicas.cluster.cluster_ops import ClusterOps
from tf_syncrep.python.keras.sync_replicas.cluster.cluster_rounds import ClusterRounds
from tf_syncrep.python.keras.sync_replicas.in_process_rounds import InProcessRounds
from tf_syncrep.python.keras.sync_replicas.rounds import (
    Observer,
    RefusedRounds,
    Rounds,
)
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import (
    ANOTHER,
    RoundsOptimizer,
)

__all__ = ["SyncReplicas"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class SyncReplicas(RoundsOptimizer):
    r"""Makes the workers of a ParameterServerStrategy train synchronously.

    Each worker computes a gradient with the present weights. When there are
    `replicas_to_aggregate` gradients, the inner optimizer applies their mean once, and
    all workers go on with the new weights:

    $$w \leftarrow w - \mathrm{inner}\Big(\frac{1}{N} \sum_{i=1}^{N} g_i(w)\Big)$$

    A gate on a parameter server decides whose gradient counts. Every variable of an
    update averages the same gradients, none is applied twice, and nobody waits for a
    worker that is gone. If `total_num_replicas` is above `replicas_to_aggregate`, the
    other workers are backups: the slowest gradients of each round are dropped. A fast
    worker may give several gradients to a round.

    Clipping, weight decay, moving averages, schedules and `iterations` are the inner
    optimizer's, and apply to the update: `iterations` counts updates, not batches.

    ```python
    with strategy.scope():  # a tf.distribute.ParameterServerStrategy
        model = build_model()
        optimizer = tfs.keras.SyncReplicas(
            tfs.keras.AdamAsync(1e-3), replicas_to_aggregate=4
        )
        model.compile(optimizer, loss="binary_crossentropy")
    tfs.keras.fit(model, dataset, steps_per_epoch=1000, epochs=3)
    ```

    A custom loop does the same with `step` and `updater`:

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
    says so once: every `replicas_to_aggregate` batches make one update. Under any other
    strategy, which is synchronous by itself, a model that was compiled with it can be
    loaded, evaluated and saved, but not trained.

    Args:
        inner_optimizer: the Keras optimizer that applies the means, or the name of one
            of Keras' own.
        replicas_to_aggregate: how many gradients make up an update.
        total_num_replicas: how many workers take part. By default all workers of the
            cluster do, so that a fifth worker is a backup if four gradients make up an
            update.
        lease_secs: after how many silent seconds a worker is taken for dead. If a
            worker has come back from a longer silence, others wait twice as long as
            that for it, but at most twice `start_secs`.
        start_secs: after how many silent seconds a worker is taken for dead before its
            first gradient. Once as many workers have given their first gradient as are
            computing theirs, it is four times the longest time that one of those took,
            but no less than `lease_secs` and no more than `start_secs`.
        reject_nonfinite: whether a gradient that contains a NaN or an infinity is
            dropped instead of applied. What the step itself assigns, such as the moving
            averages of BatchNormalization, is not undone.
        spares: whether an idle worker computes a gradient in place of a worker whose
            step takes much longer than usual. The first of the two gradients counts,
            and the other is dropped. Without spares, the others wait for a slow worker,
            up to `lease_secs`; then every gradient counts, as long as nothing fails and
            there are no backups.
        flush_last: whether an incomplete last round is applied at the end of training,
            with the mean of its gradients; otherwise these are dropped.
        name: the optimizer's name.

    Raises:
        ValueError: an argument is out of range, or the inner optimizer is not suitable.

    Source: Chen et al., "Revisiting Distributed Synchronous SGD", 2016
    (https://arxiv.org/abs/1604.00981).
    """

    _fixed: ClassVar[Mapping[str, str]] = {
        "replicas_to_aggregate": "call `configure`",
        "total_num_replicas": "call `configure`",
        "lease_secs": ANOTHER,
        "start_secs": ANOTHER,
        "reject_nonfinite": ANOTHER,
        "spares": ANOTHER,
    }

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
        # The value is saved as it was given, since another cluster may have other
        # workers.
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
        self._rounds = self._make_rounds()

    def _make_rounds(self) -> Rounds:
        """Makes the rounds for the strategy in whose scope the optimizer is made."""
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
        """Encloses the train step of a custom loop, in the function that is scheduled.

        The code inside begins when the gate has permitted it. Variables that were read
        before may be out of date. Hand in the gradients by `apply_gradients` (or
        `apply`), once at most. Without a strategy it does nothing.

        Yields:
            Nothing.

        Raises:
            RuntimeError: it was called within a step.
        """
        with self._rounds.step():
            yield

    def add_observer(self, observer: Observer) -> None:
        """Adds a function that is called when a training begins, and after each update.

        It is called on the coordinator, in the thread that makes the updates, and must
        return at once, since the workers wait meanwhile. If it raises an error, the
        error is logged, and the function is not called again. Without
        ParameterServerStrategy it is never called.

        Args:
            observer: a function that takes `iterations`, an int.
        """
        self._rounds.add_observer(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Removes a function that was passed to `add_observer`.

        One that is gone already, because it has raised an error, stays away.

        Args:
            observer: the function.
        """
        self._rounds.remove_observer(observer)

    def configure(self, replicas_to_aggregate: int, total_num_replicas: int) -> None:
        """Changes two arguments of the constructor, even while training runs.

        Args:
            replicas_to_aggregate: how many gradients make up an update, from the next
                round on.
            total_num_replicas: how many workers take part.

        Raises:
            ValueError: an argument is out of range.
        """
        quorum = check_count("replicas_to_aggregate", replicas_to_aggregate)
        total = check_count("total_num_replicas", total_num_replicas)
        self._rounds.configure(quorum, total)
        vars(self).update(replicas_to_aggregate=quorum, total_num_replicas=total)
        self._given_total = total

    def stats(self) -> dict[str, Any]:
        """Reads the counters, which continue from one training to the next.

        Returns:
            Numbers by name: "step" (`iterations`), "quorum" and "updates", and the
            numbers of gradients "applied", "pending" and "rejected". Under
            ParameterServerStrategy there are also "admitted", "committed", "late"
            (dropped, since the round had enough), "stale" (dropped, since they belong
            to an earlier round), "voided", "expired" and more. "workers" has the
            counters of each worker by its task, with "waited_secs".
        """
        return self._rounds.stats()

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; `from_config` makes an equal optimizer of it."""
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
