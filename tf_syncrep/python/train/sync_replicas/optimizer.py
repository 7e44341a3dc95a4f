"""SyncReplicasOptimizer: synchronous training with backup workers in v1 sessions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import sync_gate_ops
from tf_syncrep.python.sync import gate_stats
from tf_syncrep.python.sync.arguments import check_count, check_positive
from tf_syncrep.python.sync.gradients import as_tensors
from tf_syncrep.python.train.sync_replicas import information
from tf_syncrep.python.train.sync_replicas.graph import Settings, SyncReplicasOps
from tf_syncrep.python.train.sync_replicas.hook import SyncReplicasOptimizerHook

__all__ = ["SyncReplicasOptimizer"]


# The key of a graph's optimizers, for hooks that have to do with updates. Not a string:
# collections under strings are exported with the graph, and these cannot be.
_COLLECTION: Any = ("tf_syncrep", "SyncReplicasOptimizer")

# Its place is taken by ours after `install_v1_names`.
_StockOptimizer = tf.compat.v1.train.SyncReplicasOptimizer


class SyncReplicasOptimizer(_StockOptimizer):
    r"""Makes asynchronous replicas train synchronously, step by step.

    A drop-in for `tf.compat.v1.train.SyncReplicasOptimizer`: same constructor,
    methods, variable name and init ops, so that scripts and their checkpoints work as
    they are. It is an instance of TensorFlow's class for code that checks, such as
    tf_slim, and uses nothing of it. Each replica computes a gradient on the present
    weights; when `replicas_to_aggregate` of them are in, the chief applies their
    average once, and all go on with the new weights:

    $$w \leftarrow w - \mathrm{opt}\Big(\frac{1}{N} \sum_{i=1}^{N} g_i(w)\Big)$$

    Unlike TensorFlow's class, it does not wait for a replica that has left or
    died, averages the same set of gradients for every variable, and never applies one
    twice. A gate decides whose gradient counts, on the task that holds most of what
    is trained; see `stats`.

    With `total_num_replicas` above `replicas_to_aggregate` the rest are backups: the
    slowest gradients of each step are dropped. With fewer, replicas compute several
    gradients a step.

    As in TensorFlow's class, a step takes the gradients that are there first, whoever
    computed them: a fast replica may give several to a step, and a slow one none. So
    nobody waits for one that is stuck. With `strict=True` each live replica gives the
    same number to each step, one where there are as many as `replicas_to_aggregate`:
    steps then hold the same share of each replica's data, and go at the pace of the
    slowest.

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
        """Creates the optimizer; all replicas must create it alike.

        Args:
            opt: the optimizer that applies the averages.
            replicas_to_aggregate: how many gradients make up a step.
            total_num_replicas: how many replicas there are; `replicas_to_aggregate`
                by default.
            variable_averages: a `tf.train.ExponentialMovingAverage` to be kept after
                each step.
            variables_to_average: the variables that it averages.
            use_locking: handed to the base class, as in TensorFlow; `opt` has its own.
            name: name of the operations. Two optimizers in one graph may share it.
            replica_id: of the oldest API; has no effect.
            sparse_reduction_type: "MEAN" divides each row of a sparse gradient by how
                many gradients contained it, as TensorFlow does; "CMEAN" by how many
                there are, which equals the dense mean; "SUM" by 1.
            lease_secs: after how many silent seconds a replica is taken for dead. One
                that has come back from a longer silence is waited for twice as long
                as that, twice `start_secs` at most.
            start_secs: the same before its first gradient, at most: once as many
                replicas have given theirs as compute it, it is four times the longest
                that one of those took, and `lease_secs` at least. One never heard of is
                expected for all of this time.
            reject_nonfinite: whether a replica drops a gradient with a NaN or an
                infinity in it and computes another, instead of applying it.
            strict: whether each live replica gives the same number of gradients to
                each step, and the others wait for a slow one. Otherwise whoever is
                fast gives more, once all have been heard of or `lease_secs` have gone
                by since the chief began.

        Raises:
            ValueError: an argument out of range.
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
        # Not the constructor of TensorFlow's class, none of whose methods are used.
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
            replicas_to_aggregate=replicas_to_aggregate,
            total_num_replicas=total_num_replicas,
            variable_averages=variable_averages,
            variables_to_average=variables_to_average,
            sparse_reduction_type=sparse_reduction_type,
            lease_secs=lease_secs,
            start_secs=start_secs,
            reject_nonfinite=reject_nonfinite,
            strict=bool(strict),
        )
        # Of the last call of `apply_gradients`.
        self._built: SyncReplicasOps | None = None
        # What the chief calls with its session before the training begins.
        self._before_opening: list[Callable[[Any], None]] = []

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Computes gradients by the optimizer inside.

        They are of this replica alone: what is done to them here, clipping by their
        global norm say, is done before they are averaged.

        Args:
            *args: for `compute_gradients` of the optimizer inside.
            **kwargs: the same.

        Returns:
            A list of (gradient, variable) pairs.

        Raises:
            RuntimeError: in eager mode, in a `tf.function`, or in the scope of a
                `tf.distribute` strategy.
            ValueError: `var_list` holds something else than variables and tensors.
        """
        _refuse_what_is_no_v1_graph()
        _refuse_no_variables(kwargs.get("var_list", args[1] if args[1:] else None))
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        """Builds the step: this replica's part, and the chief's.

        Args:
            grads_and_vars: (gradient, variable) pairs, as of `compute_gradients`.
                Gradients are dense, `tf.IndexedSlices`, or None.
            global_step: int32 or int64 variable, advanced by one with each step.
            name: unused, as in TensorFlow.

        Returns:
            The train op, to be run by each replica: hands its gradient in, or drops
            it if it came too late, and waits until the next is wanted.

        Raises:
            RuntimeError: as for `compute_gradients`.
            ValueError: no gradients, no global step, a gradient of another type, or
                something else in the place of a variable.
        """
        del name
        _refuse_what_is_no_v1_graph()
        grads_and_vars = list(grads_and_vars)
        if not grads_and_vars:
            raise ValueError("Must supply at least one variable")
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
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
        # By the names of TensorFlow's class.
        self.ready_for_local_init_op: Any = self._built.ready_for_local_init_op
        self.local_step_init_op: Any = self._built.local_step_init_op
        self.chief_init_op: Any = self._built.chief_init_op
        tf.compat.v1.add_to_collection(_COLLECTION, self)
        return self._built.train_op

    def get_chief_queue_runner(self) -> Any:
        """Returns the queue runner that the chief starts, in the Supervisor's style.

        It averages and applies the gradients of each step, and closes the gate when it
        ends. Where the session has not run `chief_init_op`, it does that first. With
        `make_session_run_hook` it is not needed.

        Returns:
            A `tf.compat.v1.train.QueueRunner`.

        Raises:
            ValueError: `apply_gradients` was not called before.
        """
        return self._ops("Should").chief_queue_runner

    def get_clean_up_op(self) -> Any:
        """Returns the op by which the chief ends the training, as in the oldest API.

        Raises:
            ValueError: `apply_gradients` was not called before.
        """
        return self._ops("get_clean_up_op() should").close_op

    def get_init_tokens_op(self, num_tokens: int = -1) -> Any:
        """Returns the op that lays out passes for the first steps.

        A train op that finds a pass does not wait for the step to end. The gradient
        that follows is then computed on old weights and dropped. None are needed.

        Args:
            num_tokens: how many passes; -1: as many as are needed, which is none.

        Returns:
            The operation.

        Raises:
            ValueError: `apply_gradients` was not called before, or `num_tokens` is
                below `replicas_to_aggregate - total_num_replicas`.
        """
        ops = self._ops("get_init_tokens_op() should")
        settings = self._settings
        tokens_needed = settings.replicas_to_aggregate - settings.total_num_replicas
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
        """Returns a slot of the optimizer inside; see its `get_slot`."""
        return self._opt.get_slot(*args, **kwargs)

    def variables(self) -> list[Any]:
        """Returns the variables of the optimizer inside, without the local step."""
        return self._opt.variables()

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """Returns the names of the slots of the optimizer inside."""
        return self._opt.get_slot_names(*args, **kwargs)

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
            is_chief: whether this replica is the chief, which applies the gradients
                and at whose end training ends for all.
            num_tokens: for `get_init_tokens_op`.
            log_every_n_steps: after how many of its own steps the chief logs a line
                of what `stats` says; None or 0: never.
            summary_dir: folder into which the chief writes the same as TensorBoard
                scalars, as often and at the end; None: nowhere.

        Returns:
            A `tf.compat.v1.train.SessionRunHook`, whose attribute `stats` is what
            `stats` said when the session ended.
        """
        return SyncReplicasOptimizerHook(
            self, is_chief, num_tokens, log_every_n_steps, summary_dir
        )

    def before_opening(self, prepare: Callable[[Any], None]) -> None:
        """Has the chief's hook call something before training begins in a session.

        Args:
            prepare: takes the session, whose variables are initialized; restores
                them, say.
        """
        self._before_opening.append(prepare)

    def between_updates(self, function: Callable[[], None]) -> None:
        """Calls a function at a moment at which nothing of an update is under way.

        Waits, on the chief, until the update that comes next is made; not to be called
        in the thread that makes the chief's own gradients, which that may wait for.

        Args:
            function: what to call.

        Raises:
            tf.errors.CancelledError: training ended before.
        """
        self._ops("Should").hooks_queue_runner.between_updates(function)

    def close(self, session: Any) -> None:
        """Ends the training of all, from the chief, after the update under way.

        Args:
            session: the chief's session.
        """
        ops = self._ops("Should")
        session.run(ops.close_op)
        ops.hooks_queue_runner.wait_for_end()

    def stats(self, session: Any) -> dict[str, Any]:
        """Reads what has happened so far, from the gate.

        Args:
            session: a session of this graph.

        Returns:
            The counters by name: "updates"; of gradients "admitted", "committed",
            "applied", "late" (dropped, the step had enough), "stale" (dropped, of an
            earlier step), "rejected", "voided", "expired"; and more, and under
            "workers" each replica's own, by its task, with "waited_secs".

        Raises:
            ValueError: `apply_gradients` was not called before.
        """
        stats_op = self._ops("Should").stats_op
        return gate_stats.to_dict(*session.run(stats_op))

    def _ops(self, who_should: str) -> SyncReplicasOps:
        """What `apply_gradients` has built; an error says who was called too early."""
        if self._built is None:
            raise ValueError(f"{who_should} be called after apply_gradients().")
        return self._built


def optimizers_of_graph() -> list[SyncReplicasOptimizer]:
    """Those whose `apply_gradients` was called in the default graph."""
    return tf.compat.v1.get_collection(_COLLECTION)


def _refuse_what_is_no_v1_graph() -> None:
    """Raises where there is no graph that a session could run, or a strategy."""
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
    """Raises for what no gradient can be asked of, numbers or names say.

    Tensors pass, as with TensorFlow's class: a script may want the gradient of one
    without having it applied.
    """
    for variable in tf.nest.flatten([] if var_list is None else var_list):
        if not (isinstance(variable, tf.Variable) or tf.is_tensor(variable)):
            raise ValueError(
                f"`var_list` must hold variables. Received: {variable!r} in var_list"
            )
