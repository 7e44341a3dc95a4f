"""SyncReplicas: synchronous training with any Keras optimizer."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.hyper_parameters import check_count, check_positive
from tf_syncrep.python.keras.sync_replicas.callback import SyncReplicasCallback
from tf_syncrep.python.keras.sync_replicas.cluster_rounds import ClusterRounds, Permit
from tf_syncrep.python.keras.sync_replicas.in_process_rounds import InProcessRounds
from tf_syncrep.python.keras.sync_replicas.updater import Updater
from tf_syncrep.python.sync import gate_stats
from tf_syncrep.python.sync.gradients import as_tensors

__all__ = ["SyncReplicas"]


@tf.keras.utils.register_keras_serializable(package="tf_syncrep")
class SyncReplicas(compat.WrapperOptimizer):
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
            tfs.keras.AdamAsync(1e-3), replicas_to_aggregate=4, total_num_replicas=5)
        model.compile(optimizer, loss="binary_crossentropy")
    model.fit(dataset, steps_per_epoch=1000, epochs=3,
              callbacks=[optimizer.make_callback()])
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

    Without a strategy, in one process, it accumulates gradients: each
    `replicas_to_aggregate` batches make up one update, with the same numbers as one
    batch as large as they are together, and no callback is needed. What is in of an
    incomplete round is not saved.

    Args:
        inner_optimizer: the Keras optimizer that applies the means, or its name.
        replicas_to_aggregate: how many gradients make up an update.
        total_num_replicas: how many workers take part; `replicas_to_aggregate` by
            default.
        lease_secs: after how many silent seconds a worker is taken for dead.
        start_secs: the same before its first gradient, at most: once as many workers
            have given theirs as compute it, it is four times the longest that one of
            those took, and `lease_secs` at least.
        reject_nonfinite: whether a gradient with a NaN or an infinity in it is dropped
            instead of applied.
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
        flush_last: bool = True,
        name: str = "SyncReplicas",
    ):
        inner_optimizer = _check_inner(inner_optimizer)
        super().__init__(inner_optimizer, name)
        self.replicas_to_aggregate = check_count(
            "replicas_to_aggregate", replicas_to_aggregate
        )
        if total_num_replicas is None:
            total_num_replicas = replicas_to_aggregate
        self.total_num_replicas = check_count("total_num_replicas", total_num_replicas)
        self.lease_secs = check_positive("lease_secs", lease_secs)
        self.start_secs = check_positive("start_secs", start_secs)
        self.reject_nonfinite = bool(reject_nonfinite)
        self.flush_last = bool(flush_last)
        self._local = threading.local()  # The permit of the step that is traced.
        self._updater: Updater | None = None
        self._rounds: ClusterRounds | InProcessRounds
        self._strategy = tf.distribute.get_strategy()
        if _is_parameter_server(self._strategy):
            if self._strategy.num_replicas_in_sync > 1:
                raise ValueError(
                    "SyncReplicas needs workers with at most one GPU each. Received: "
                    f"workers with {self._strategy.num_replicas_in_sync}."
                )
            self._rounds = ClusterRounds(
                self.replicas_to_aggregate,
                self.total_num_replicas,
                self.lease_secs,
                self.start_secs,
                self.reject_nonfinite,
                device=compat.native(self.iterations).device,
            )
            self._updater = Updater(
                self._rounds, self._strategy, self.iterations, self.update
            )
        elif tf.distribute.has_strategy():
            raise ValueError(
                "SyncReplicas works under ParameterServerStrategy, or without any "
                f"strategy. Received: {type(self._strategy).__name__}. Use the inner "
                "optimizer alone: that strategy is synchronous by itself."
            )
        else:
            self._rounds = InProcessRounds(
                self.replicas_to_aggregate, self.reject_nonfinite, self.update
            )

    @property
    def is_distributed(self) -> bool:
        """Whether workers train it, under ParameterServerStrategy."""
        return isinstance(self._rounds, ClusterRounds)

    def make_callback(
        self,
        *,
        log_dir: str | None = None,
        every_n_updates: int = 100,
        verbose: int = 1,
    ) -> SyncReplicasCallback:
        """Makes the callback that `Model.fit` needs under ParameterServerStrategy.

        It opens the gate when training begins, makes the train step wait for its
        permit, runs the updates, completes them before validation, checkpoints and the
        end of each epoch, and adds the gate's counters to the logs.

        Args:
            log_dir: where TensorBoard scalars `sync/...` are written; None: nowhere.
            every_n_updates: how often they are written.
            verbose: 1 prints a line at the end of each epoch, 0 nothing.

        Returns:
            The callback, for one `fit` at a time.

        Raises:
            ValueError: an argument out of range.
        """
        return SyncReplicasCallback(
            self,
            log_dir=log_dir,
            every_n_updates=check_count("every_n_updates", every_n_updates),
            verbose=verbose,
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
        if isinstance(self._rounds, InProcessRounds):
            yield
            return
        if self._permit is not None:
            raise RuntimeError("SyncReplicas.step() must not be nested.")
        permit = self._rounds.acquire()
        self._local.permit = permit
        try:
            with tf.control_dependencies([permit.round]):
                yield
                if not permit.used:
                    self._rounds.give_back(permit)
        finally:
            self._local.permit = None

    @contextlib.contextmanager
    def updater(self, strategy: Any = None) -> Iterator[Updater]:
        """Runs the updates of a custom loop, in the coordinator, around the loop.

        On a regular end it completes what is under way and applies, or drops, a last
        incomplete round; the loop must have joined its closures by then.

        Args:
            strategy: the `tf.distribute.ParameterServerStrategy`; by default the one
                that the optimizer was made under.

        Yields:
            The updater, whose `drain()` waits until no update is under way.

        Raises:
            ValueError: another strategy.
            RuntimeError: updates are being run already.
            tf.errors.OpError: an update failed.
        """
        if strategy is not None and strategy is not self._strategy:
            raise ValueError(
                "`strategy` must be the one that the optimizer was made under. "
                f"Received: strategy={strategy}"
            )
        if self._updater is not None and self._updater.is_running:
            raise RuntimeError(
                "SyncReplicas is training already: one `fit`, or one `updater()`, at a "
                "time."
            )
        updater = self.start_updater()
        try:
            yield updater
            self.finish_updater()
        except tf.errors.OpError as error:
            updater.close()
            if updater.cause is not None and updater.cause is not error:
                raise updater.cause from error
            raise
        finally:
            updater.close()

    def start_updater(self, on_update: Callable[[int], None] | None = None) -> Updater:
        """Starts the updates; what `updater` and the callback share.

        Args:
            on_update: called after each update, in another thread, with `iterations`.

        Returns:
            The updater, which runs until its `finish` or `close`.

        Raises:
            ValueError: the optimizer was not made under ParameterServerStrategy.
        """
        if self._updater is None:
            raise ValueError(
                "SyncReplicas has no updater without ParameterServerStrategy: "
                "`apply_gradients` makes the updates."
            )
        self._updater.close()  # that of a `fit` that an error has ended
        self._updater.start(on_update)
        return self._updater

    def finish_updater(self) -> int:
        """Completes what is under way and applies, or drops, a last incomplete round.

        Returns:
            The number of gradients of that round.

        Raises:
            tf.errors.OpError: an update failed.
        """
        if self._updater is None:
            return 0
        return self._updater.finish(flush=self.flush_last)

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the inner optimizer's variables, once.

        Args:
            variables: the variables that are to be trained.
        """
        super().build(variables)
        self.place_gate(variables)

    def place_gate(self, variables: Sequence[Any]) -> None:
        """Chooses the gate's parameter server: that of most of what is trained.

        Done by `build`; `fit` does it where Keras builds optimizers in the first step,
        when the gate is there already.

        Args:
            variables: the variables that are to be trained.
        """
        if isinstance(self._rounds, ClusterRounds):
            natives = [compat.native(variable) for variable in variables]
            self._rounds.place_gate(
                [part for native in natives for part in _parts(native)]
            )

    def receive(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Hands in the gradients of a batch; called by Keras.

        Args:
            gradients: one for each variable.
            variables: the variables.

        Raises:
            RuntimeError: under ParameterServerStrategy and outside of a step, or for
                the second time in one; or where XLA compiles.
        """
        gradients = [as_tensors(gradient) for gradient in gradients]
        natives = [compat.native(variable) for variable in variables]
        if compat.compiled_by_xla():
            raise RuntimeError(
                "SyncReplicas cannot be compiled by XLA: pass `jit_compile=False` to "
                "`compile`."
            )
        if isinstance(self._rounds, InProcessRounds):
            self._rounds.receive(gradients, variables, natives)
            return
        permit = self._permit
        if permit is None:
            raise RuntimeError(
                "SyncReplicas needs `callbacks=[optimizer.make_callback()]` in `fit` "
                "under ParameterServerStrategy, or, in a custom loop, "
                "`with optimizer.step():` in the scheduled function and "
                "`with optimizer.updater(strategy):` around the loop."
            )
        if permit.used:
            raise RuntimeError(
                "SyncReplicas takes gradients once in a step: apply those of all "
                "variables in one call."
            )
        self._rounds.contribute(permit, gradients, variables, natives)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Ends a training; called by `fit`.

        A last incomplete round is applied or dropped first.

        Args:
            var_list: the model's variables.
        """
        if isinstance(self._rounds, InProcessRounds):
            if self.flush_last:
                self._rounds.flush()
            else:
                self._rounds.drop()
        else:
            self.finish_updater()
        super().finalize_variable_values(var_list)

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
        if isinstance(self._rounds, InProcessRounds):
            self._rounds.configure(quorum)
        else:
            self._rounds.configure(quorum, total)
        self.replicas_to_aggregate, self.total_num_replicas = quorum, total

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
        if isinstance(self._rounds, InProcessRounds):
            step = int(compat.native(self.iterations).numpy())
            return {"step": step, **self._rounds.stats()}
        return gate_stats.to_dict(*(x.numpy() for x in self._rounds.stats()))

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` makes an equal optimizer of."""
        return {
            "name": self.name,
            "inner_optimizer": tf.keras.optimizers.serialize(self.inner_optimizer),
            "replicas_to_aggregate": self.replicas_to_aggregate,
            "total_num_replicas": self.total_num_replicas,
            "lease_secs": self.lease_secs,
            "start_secs": self.start_secs,
            "reject_nonfinite": self.reject_nonfinite,
            "flush_last": self.flush_last,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer of what `get_config` returned.

        Args:
            config: the arguments by name, the inner optimizer serialised.
            custom_objects: classes by name, for the inner optimizer.

        Returns:
            The optimizer, without state.
        """
        inner_optimizer = tf.keras.optimizers.deserialize(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(**{**config, "inner_optimizer": inner_optimizer})

    @property
    def _permit(self) -> Permit | None:
        return getattr(self._local, "permit", None)


def _is_parameter_server(strategy: Any) -> bool:
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def _parts(variable: Any) -> Sequence[Any]:
    """The variables that a partitioned variable is made of; itself if it is not one."""
    return getattr(variable, "variables", [variable])


def _check_inner(inner_optimizer: Any) -> Any:
    if isinstance(inner_optimizer, str):
        inner_optimizer = tf.keras.optimizers.get(inner_optimizer)
    if not isinstance(inner_optimizer, tf.keras.optimizers.Optimizer):
        raise ValueError(
            "`inner_optimizer` must be a tf.keras.optimizers.Optimizer, or the name of "
            f"one. Received: inner_optimizer={inner_optimizer!r}"
        )
    if hasattr(inner_optimizer, "inner_optimizer"):
        raise ValueError(
            "`inner_optimizer` must not be around an optimizer itself: a "
            "LossScaleOptimizer goes around SyncReplicas. Received: inner_optimizer="
            f"{type(inner_optimizer).__name__}"
        )
    if getattr(inner_optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            "`inner_optimizer` must not accumulate gradients itself. Received: "
            "gradient_accumulation_steps="
            f"{inner_optimizer.gradient_accumulation_steps}"
        )
    return inner_optimizer
