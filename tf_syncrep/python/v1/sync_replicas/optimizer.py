"""SyncReplicasOptimizer: synchronous training with backup workers in v1 sessions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.base.arguments import check_count, check_positive
from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync import gate_stats
from tf_syncrep.python.sync.gradients import as_tensors
from tf_syncrep.python.v1.sync_replicas import information
from tf_syncrep.python.v1.sync_replicas.graph import Settings, SyncReplicasOps
from tf_syncrep.python.v1.sync_replicas.hook import SyncReplicasOptimizerHook

__all__ = ["SyncReplicasOptimizer"]


# The key of the collection of a graph's optimizers, for hooks that need to know of
# updates. It is not a string, since collections with strings as keys are exported with
# the graph, which optimizers cannot be.
_COLLECTION: Any = ("tf_syncrep", "SyncReplicasOptimizer")

# `install_v1_names` puts our class in its place.
_StockOptimizer = tf.compat.v1.train.SyncReplicasOptimizer


class SyncReplicasOptimizer(_StockOptimizer):
    r"""Makes asynchronous replicas train synchronously, step by step.

    A drop-in for `tf.compat.v1.train.SyncReplicasOptimizer`: it has the same
    constructor, methods, variable name and init ops, so that scripts and their
    checkpoints work as they are. For code that checks, such as tf_slim, it is an
    instance of TensorFlow's class, but it uses nothing of that. Each replica computes a
    gradient with the present weights. When there are `replicas_to_aggregate` gradients,
    the chief applies their average once, and all replicas go on with the new weights:

    $$w \leftarrow w - \mathrm{opt}\Big(\frac{1}{N} \sum_{i=1}^{N} g_i(w)\Big)$$

    Unlike TensorFlow's class, it does not wait for a replica that has left or died,
    averages the same set of gradients for every variable, and never applies a gradient
    twice. A gate, on the task that holds most of what is trained, decides whose
    gradient counts; see `stats`.

    If `total_num_replicas` is above `replicas_to_aggregate`, the other replicas are
    backups: the slowest gradients of each step are dropped. If it is below, replicas
    compute several gradients for each step.

    As in TensorFlow's class, a step takes the first gradients that arrive, whoever
    computed them: a fast replica may give several to a step, and a slow one none. So
    nobody waits for a replica that is stuck. With `strict=True` each live replica gives
    the same number of gradients to each step, which is one if there are
    `replicas_to_aggregate` live ones. Then each step has the same share of each
    replica's data, and takes as long as the slowest replica needs.

    ```python
    opt = tfs.train.SyncReplicasOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(0.1),
        replicas_to_aggregate=4,
        total_num_replicas=5,
    )
    train_op = opt.minimize(loss, global_step=global_step)
    hook = opt.make_session_run_hook(is_chief)
    with tf.compat.v1.train.MonitoredTrainingSession(
        master, is_chief=is_chief, hooks=[hook]
    ) as session:
        while not session.should_stop():
            session.run(train_op)
    ```

    When the chief's session ends, training ends for all: in the other replicas the
    train op raises `tf.errors.OutOfRangeError`, which ends the loop above in an orderly
    way. A replica that ends earlier leaves, and the others go on without it. One
    process takes part once: threads that share a session count as one replica.

    Source: Chen et al., "Revisiting Distributed Synchronous SGD", 2016.
    """

    def __init__(
        self,
        opt: Any,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: Any = None,
        variables_to_average: Sequence[Any] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
        *,
        replica_id: int | None = None,
        sparse_reduction_type: str = "MEAN",
        lease_secs: float = 60.0,
        start_secs: float = 600.0,
        reject_nonfinite: bool = False,
        strict: bool = False,
    ):
        """Creates the optimizer; all replicas must create it with the same arguments.

        Args:
            opt: the optimizer that applies the averages.
            replicas_to_aggregate: how many gradients make up a step.
            total_num_replicas: how many replicas there are; `replicas_to_aggregate`
                by default.
            variable_averages: a `tf.train.ExponentialMovingAverage` to update after
                each step.
            variables_to_average: the variables that it averages.
            use_locking: passed to the base class, as in TensorFlow; `opt` has its own.
            name: name of the operations. Two optimizers in one graph may share it.
            replica_id: an argument of the oldest API, which has no effect.
            sparse_reduction_type: "MEAN" divides each row of a sparse gradient by the
                number of gradients that contained it, as TensorFlow does; "CMEAN" by
                the number of all gradients, as for dense gradients; "SUM" not at all.
            lease_secs: after how many silent seconds a replica is taken for dead. If a
                replica has come back from a longer silence, others wait twice as long
                as that for it, but at most twice `start_secs`.
            start_secs: the same before a replica's first gradient. Once as many
                replicas have given their first gradient as are computing theirs, it is
                four times the longest time that one of those took, but no less than
                `lease_secs` and no more than `start_secs`. A replica that was never
                heard of is expected for `start_secs`.
            reject_nonfinite: whether a replica drops a gradient that contains a NaN or
                an infinity and computes another one, instead of applying it.
            strict: whether each live replica gives the same number of gradients to each
                step, and the others wait for a slow one. Otherwise fast replicas give
                more, once all have been heard of or `lease_secs` have passed since the
                chief began.

        Raises:
            ValueError: an argument is out of range.
        """
        if replica_id is not None:
            warnings.warn(
                "replica_id has no effect any more: replicas are told apart by their "
                "tasks.",
                DeprecationWarning,
                stacklevel=2,
            )
        if total_num_replicas is None:
            total_num_replicas = replicas_to_aggregate
        check_count("replicas_to_aggregate", replicas_to_aggregate)
        check_count("total_num_replicas", total_num_replicas)
        check_positive("lease_secs", lease_secs)
        check_positive("start_secs", start_secs)
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise ValueError(
                "`opt` must be a tf.compat.v1.train.Optimizer; around one of Keras use "
                f"tfs.keras.SyncReplicas. Received: opt of type {type(opt).__name__}"
            )
        if sparse_reduction_type not in ("MEAN", "CMEAN", "SUM"):
            raise ValueError(
                "sparse_reduction_type must be one of 'MEAN', 'CMEAN' and 'SUM'. "
                f"Received: sparse_reduction_type={sparse_reduction_type!r}"
            )
        # It does not call the constructor of TensorFlow's class, none of whose methods
        # are used.
        tf.compat.v1.train.Optimizer.__init__(self, use_locking, name)
        information.info(
            "SyncReplicas: replicas_to_aggregate=%s; total_num_replicas=%s",
            replicas_to_aggregate,
            total_num_replicas,
        )
        self._opt = opt
        self._settings = Settings(
            name=name,
            optimizer=opt,
            quorum=replicas_to_aggregate,
            total_num_replicas=total_num_replicas,
            variable_averages=variable_averages,
            variables_to_average=variables_to_average,
            sparse_reduction_type=sparse_reduction_type,
            lease_secs=lease_secs,
            start_secs=start_secs,
            reject_nonfinite=reject_nonfinite,
            strict=bool(strict),
        )
        # The ops of the last call of `apply_gradients`.
        self._built: SyncReplicasOps | None = None
        # Functions that the chief calls with its session before the training begins.
        self._before_opening: list[Callable[[Any], None]] = []

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Computes gradients by the inner optimizer.

        They are the gradients of this replica alone: if you change them here, by
        clipping their global norm, say, that happens before they are averaged.

        Args:
            *args: arguments of the inner optimizer's `compute_gradients`.
            **kwargs: keyword arguments of the same method.

        Returns:
            A list of (gradient, variable) pairs.

        Raises:
            RuntimeError: it was called in eager mode, in a `tf.function`, or in the
                scope of a `tf.distribute` strategy.
            ValueError: `var_list` contains something other than variables and tensors.
        """
        _refuse_what_is_no_v1_graph()
        _refuse_no_variables(kwargs.get("var_list", args[1] if args[1:] else None))
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        """Builds the step: this replica's part, and the chief's.

        Args:
            grads_and_vars: (gradient, variable) pairs, as `compute_gradients` returns
                them. Gradients are dense, `tf.IndexedSlices`, or None.
            global_step: an int32 or int64 variable, which each step advances by one.
            name: unused, as in TensorFlow.

        Returns:
            The train op, which each replica runs: it hands in the replica's gradient,
            or drops it if it came too late, and waits until the next one is needed.

        Raises:
            RuntimeError: as in `compute_gradients`.
            ValueError: there are no gradients or no global step, or it is no variable,
                a gradient is of another type, or a pair has something other than a
                variable.
        """
        del name
        _refuse_what_is_no_v1_graph()
        grads_and_vars = list(grads_and_vars)
        if not grads_and_vars:
            raise ValueError("Must supply at least one variable")
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
        if not isinstance(global_step, tf.Variable):
            raise ValueError(
                "`global_step` must be a variable. "
                f"Received: global_step={global_step!r}"
            )
        for gradient, _ in grads_and_vars:
            if not isinstance(gradient, (tf.Tensor, tf.IndexedSlices, type(None))):
                raise ValueError("Unknown grad type!")
        for _, variable in grads_and_vars:
            if not isinstance(variable, tf.Variable):
                raise ValueError(
                    "`grads_and_vars` must pair gradients with variables. "
                    f"Received: {variable!r} in the place of a variable"
                )
        grads_and_vars = [
            (gradient if gradient is None else as_tensors(gradient), variable)
            for gradient, variable in grads_and_vars
        ]
        self._built = SyncReplicasOps(self._settings, grads_and_vars, global_step)
        # The attributes have the names of TensorFlow's class.
        self.ready_for_local_init_op: Any = self._built.ready_for_local_init_op
        self.local_step_init_op: Any = self._built.local_step_init_op
        self.chief_init_op: Any = self._built.chief_init_op
        tf.compat.v1.add_to_collection(_COLLECTION, self)
        return self._built.train_op

    def get_chief_queue_runner(self) -> Any:
        """Returns the queue runner that the chief starts, in the Supervisor's style.

        It averages and applies the gradients of each step, and closes the gate when it
        ends. If the session has not run `chief_init_op`, it runs that first. It is not
        needed with `make_session_run_hook`.

        Returns:
            A `tf.compat.v1.train.QueueRunner`.

        Raises:
            ValueError: `apply_gradients` was not called.
        """
        return self._ops("Should").chief_queue_runner

    def get_clean_up_op(self) -> Any:
        """Returns the op by which the chief ends the training, as in the oldest API.

        Raises:
            ValueError: `apply_gradients` was not called.
        """
        return self._ops("get_clean_up_op() should").close_op

    def get_init_tokens_op(self, num_tokens: int = -1) -> Any:
        """Returns the op that adds passes for the first steps.

        A train op that finds a pass does not wait for the step to end. The next
        gradient is then computed with old weights, and dropped. Training needs no
        passes.

        Args:
            num_tokens: how many passes; -1 for as many as are needed, which is none.

        Returns:
            The operation.

        Raises:
            ValueError: `apply_gradients` was not called, or `num_tokens` is below
                `replicas_to_aggregate - total_num_replicas`.
        """
        ops = self._ops("get_init_tokens_op() should")
        settings = self._settings
        tokens_needed = settings.quorum - settings.total_num_replicas
        if num_tokens != -1 and num_tokens < tokens_needed:
            raise ValueError(
                "Too few tokens to finish the first step: "
                f"{num_tokens} (given) vs {tokens_needed} (needed)"
            )
        if num_tokens <= 0:
            return tf.no_op(name="no_init_tokens")
        with tf.device(ops.gate_device), tf.compat.v1.name_scope(""):
            return sync_gate_ops.sync_gate_add_passes(ops.gate, num_tokens)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a slot of the inner optimizer; see its `get_slot`."""
        return self._opt.get_slot(*args, **kwargs)

    def variables(self) -> list[Any]:
        """Returns the variables of the inner optimizer, without the local step."""
        return self._opt.variables()

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """Returns the names of the inner optimizer's slots."""
        return self._opt.get_slot_names(*args, **kwargs)

    def slots_of(self, variable: Any) -> list[Any]:
        """Returns what an update of a variable changes besides it.

        Args:
            variable: any variable of the graph.

        Returns:
            Its slots, and its moving average; none of a variable that is not trained.
        """
        found = [self.get_slot(variable, name) for name in self.get_slot_names()]
        averages = self._settings.variable_averages
        found.append(averages and averages.average(variable))
        return [slot for slot in found if slot is not None]

    def make_session_run_hook(
        self,
        is_chief: bool,
        num_tokens: int = -1,
        *,
        log_every_n_steps: int | None = 100,
        summary_dir: str | None = None,
    ) -> Any:
        """Returns the hook that every replica gives to its MonitoredTrainingSession.

        Args:
            is_chief: whether this replica is the chief, which applies the gradients,
                and whose end is the end of the training for all.
            num_tokens: the argument of `get_init_tokens_op`.
            log_every_n_steps: after how many of its own steps the chief logs a line
                with the counters of `stats`; None or 0 for never.
            summary_dir: a folder into which the chief writes the counters as
                TensorBoard scalars, at the same interval and at the end; None for none.

        Returns:
            A `tf.compat.v1.train.SessionRunHook`, whose attribute `stats` has the
            counters at the end of the session.
        """
        return SyncReplicasOptimizerHook(
            self, is_chief, num_tokens, log_every_n_steps, summary_dir
        )

    def before_opening(self, prepare: Callable[[Any], None]) -> None:
        """Makes the chief's hook call a function before training begins in a session.

        Args:
            prepare: takes the session, whose variables are initialized; it may restore
                them, for example.
        """
        self._before_opening.append(prepare)

    def between_updates(self, function: Callable[[], None]) -> None:
        """Calls a function at a moment when no update is in progress.

        It must be called on the chief. It waits until the next update is made, so it
        must not be called in the thread that computes the chief's own gradients, for
        which that update may wait.

        Args:
            function: the function to call.

        Raises:
            tf.errors.CancelledError: training ended before that.
        """
        self._ops("Should").running_queue_runner.between_updates(function)

    def close(self, session: Any) -> None:
        """Ends the training of all replicas, from the chief, after the present update.

        Args:
            session: the chief's session.
        """
        ops = self._ops("Should")
        queue_runner = ops.running_queue_runner
        session.run(ops.close_op)
        queue_runner.wait_for_end()

    def stats(self, session: Any) -> dict[str, Any]:
        """Reads the counters of the gate.

        Args:
            session: a session of this graph.

        Returns:
            The counters by name, among them "closed" (1 once the training has ended),
            "updates" and these numbers of gradients:
            "admitted", "committed", "applied", "late" (dropped, since the step had
            enough), "stale" (dropped, since they belong to an earlier step),
            "rejected", "voided" and "expired". Under "workers" are the counters of each
            replica, by its task, with "waited_secs".

        Raises:
            ValueError: `apply_gradients` was not called.
        """
        stats_op = self._ops("Should").stats_op
        return gate_stats.to_dict(*session.run(stats_op))

    def _ops(self, who_should: str) -> SyncReplicasOps:
        """Returns the ops of the last `apply_gradients`; raises if there was none."""
        if self._built is None:
            raise ValueError(f"{who_should} be called after apply_gradients().")
        return self._built


def optimizers_of_graph() -> list[SyncReplicasOptimizer]:
    """Returns optimizers whose `apply_gradients` was called in the default graph."""
    return tf.compat.v1.get_collection(_COLLECTION)


def _refuse_what_is_no_v1_graph() -> None:
    """Raises an error outside a graph that a session can run, and under a strategy."""
    if tf.executing_eagerly() or tf.inside_function():
        where = "eager mode" if tf.executing_eagerly() else "a tf.function"
    elif tf.distribute.has_strategy():
        where = f"the scope of {type(tf.distribute.get_strategy()).__name__}"
    else:
        return
    raise RuntimeError(
        "SyncReplicasOptimizer trains in tf.compat.v1 graphs and sessions, whose "
        "variables tf.compat.v1.train.replica_device_setter places. Under "
        "ParameterServerStrategy use tfs.keras.SyncReplicas. "
        f"Received: a call in {where}"
    )


def _refuse_no_variables(var_list: Any) -> None:
    """Raises an error for numbers, names and others that have no gradient.

    Tensors pass, as with TensorFlow's class: a script may want the gradient of a tensor
    without applying it.
    """
    for variable in tf.nest.flatten([] if var_list is None else var_list):
        if not (isinstance(variable, tf.Variable) or tf.is_tensor(variable)):
            raise ValueError(
                f"`var_list` must hold variables. Received: {variable!r} in var_list"
            )
