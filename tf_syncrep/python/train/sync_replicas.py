"""SyncReplicasOptimizer: synchronous training with backup workers in v1 sessions."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import checkpoint_ops, op_library, sync_gate_ops
from tf_syncrep.python.sync import (
    gate_placement,
    gate_stats,
    gradient_checks,
    gradient_transfers,
    messages,
)
from tf_syncrep.python.sync.arguments import check_count, check_positive
from tf_syncrep.python.sync.gradient_accumulators import (
    NO_ROUND,
    kind_of,
    make_accumulator,
)
from tf_syncrep.python.sync.gradients import as_tensors, flatten
from tf_syncrep.python.train import client, information
from tf_syncrep.python.train.adam_async import AdamAsyncOptimizer
from tf_syncrep.python.train.checkpoint_contents import is_written_by_rows
from tf_syncrep.python.train.chief_queue_runner import ChiefQueueRunner
from tf_syncrep.python.train.departures import Departures
from tf_syncrep.python.train.sync_replicas_hook import SyncReplicasOptimizerHook

__all__ = ["SyncReplicasOptimizer"]


# Optimizers that leave the rows of a table that a sparse gradient does not have alone.
# Of a subclass it is not known.
_WRITING_ROWS_OF_GRADIENTS_ONLY = (
    AdamAsyncOptimizer,
    tf.compat.v1.train.AdagradOptimizer,
    tf.compat.v1.train.FtrlOptimizer,
    tf.compat.v1.train.GradientDescentOptimizer,
    tf.compat.v1.train.MomentumOptimizer,
    tf.compat.v1.train.RMSPropOptimizer,
)

# Under which a graph has its optimizers, for hooks that have to do with updates. Not a
# string: those collections are exported with the graph, and these cannot be.
_COLLECTION: Any = ("tf_syncrep", "SyncReplicasOptimizer")

# Its place is taken by ours after `install_v1_names`.
_StockOptimizer = tf.compat.v1.train.SyncReplicasOptimizer


class SyncReplicasOptimizer(_StockOptimizer):
    r"""Makes asynchronous replicas train synchronously, step by step.

    A drop-in for `tf.compat.v1.train.SyncReplicasOptimizer`: same constructor,
    methods, variable name and init ops, so that scripts and their checkpoints work as
    they are. It is an instance of TensorFlow's class for those that ask, tf_slim for
    one, and uses nothing of it. Each replica computes a gradient on the present
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
        replicas_to_aggregate=4, total_num_replicas=5)
    train_op = opt.minimize(loss, global_step=global_step)
    hook = opt.make_session_run_hook(is_chief)
    with tf.compat.v1.train.MonitoredTrainingSession(
            master, is_chief=is_chief, hooks=[hook]) as session:
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
        opt: tf.compat.v1.train.Optimizer,
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
            lease_secs: after how many silent seconds a replica is taken for dead.
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
        self._replicas_to_aggregate = replicas_to_aggregate
        self._total_num_replicas = total_num_replicas
        self._variable_averages = variable_averages
        self._variables_to_average = variables_to_average
        self._sparse_reduction_type = sparse_reduction_type
        self._lease_secs = lease_secs
        self._start_secs = start_secs
        self._reject_nonfinite = reject_nonfinite
        self._strict = bool(strict)
        self._gradients_applied = False
        self._global_step = None
        # What the chief calls with its session before the training begins.
        self._before_opening: list[Callable[[Any], None]] = []

    def compute_gradients(self, *args, **kwargs):
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

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
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
        self._global_step = global_step
        self._make_local_variables()
        self._make_gate(grads_and_vars)

        with tf.compat.v1.name_scope(None, self._name):
            self._make_accumulators(grads_and_vars)
            self._sync_op = self._make_sync_op(grads_and_vars)
            self._make_init_ops()
            train_op = self._make_train_op(grads_and_vars)
            self._make_end_ops()
        self._gradients_applied = True
        tf.compat.v1.add_to_collection(_COLLECTION, self)
        return train_op

    def get_chief_queue_runner(self):
        """Returns the queue runner that the chief starts, in the Supervisor's style.

        It averages and applies the gradients of each step, and closes the gate when it
        ends. Where the session has not run `chief_init_op`, it does that first. With
        `make_session_run_hook` it is not needed.

        Returns:
            A `tf.compat.v1.train.QueueRunner`.

        Raises:
            ValueError: `apply_gradients` was not called before.
        """
        if not self._gradients_applied:
            raise ValueError("Should be called after apply_gradients().")
        return self._chief_queue_runner

    def get_clean_up_op(self):
        """Returns the op by which the chief ends the training, as in the oldest API.

        Raises:
            ValueError: `apply_gradients` was not called before.
        """
        if not self._gradients_applied:
            raise ValueError(
                "get_clean_up_op() should be called after apply_gradients()."
            )
        return self._close_op

    def get_init_tokens_op(self, num_tokens=-1):
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
        if not self._gradients_applied:
            raise ValueError(
                "get_init_tokens_op() should be called after apply_gradients()."
            )
        tokens_needed = self._replicas_to_aggregate - self._total_num_replicas
        if num_tokens != -1 and num_tokens < tokens_needed:
            raise ValueError(
                "Too few tokens to finish the first step: "
                f"{num_tokens} (given) vs {tokens_needed} (needed)"
            )
        if num_tokens <= 0:
            return tf.no_op(name="no_init_tokens")
        with tf.device(self._gate_device), tf.compat.v1.name_scope(""):
            return sync_gate_ops.sync_gate_add_passes(self._gate, num_tokens)

    def get_slot(self, *args, **kwargs):
        """Returns a slot of the optimizer inside; see its `get_slot`."""
        return self._opt.get_slot(*args, **kwargs)

    def variables(self):
        """Returns the variables of the optimizer inside, without the local step."""
        return self._opt.variables()

    def get_slot_names(self, *args, **kwargs):
        """Returns the names of the slots of the optimizer inside."""
        return self._opt.get_slot_names(*args, **kwargs)

    def make_session_run_hook(
        self,
        is_chief,
        num_tokens=-1,
        *,
        log_every_n_steps=100,
        summary_dir=None,
    ):
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
        self._hooks_queue_runner.between_updates(function)

    def close(self, session) -> None:
        """Ends the training of all, from the chief, after the update under way.

        Args:
            session: the chief's session.
        """
        session.run(self._close_op)
        self._hooks_queue_runner.wait_for_end()

    def stats(self, session) -> dict[str, Any]:
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
        if not self._gradients_applied:
            raise ValueError("Should be called after apply_gradients().")
        return gate_stats.to_dict(*session.run(self.stats_op))

    def _make_local_variables(self) -> None:
        """Makes what a replica remembers of its permit, on the replica's own task."""
        anchor = tf.no_op()
        extended = tf.distribute.get_strategy().extended
        with extended.colocate_vars_with(anchor):
            self._local_step, self._local_permit = (
                tf.compat.v1.Variable(
                    initial_value=value,
                    trainable=False,
                    collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                    dtype=dtype,
                    name=name,
                )
                for name, value, dtype in (
                    ("sync_rep_local_step", 0, self._global_step.dtype.base_dtype),
                    # Generation and round, and the client that has acquired it.
                    ("sync_rep_local_permit", [0, 0, 0], tf.int64),
                )
            )
        with tf.device("/device:CPU:0"):
            self._worker = client.worker()

    def _make_gate(self, grads_and_vars) -> None:
        """Makes the gate beside most of what is trained, or else the global step."""
        self._gate_device = gate_placement.gate_device(
            [variable for gradient, variable in grads_and_vars if gradient is not None],
            self._global_step.device,
        )
        self._shared_name = _shared_name(self._name, self._global_step, grads_and_vars)
        make_gate = functools.partial(
            sync_gate_ops.sync_gate,
            self._replicas_to_aggregate,
            self._total_num_replicas,
            shared_name=self._shared_name,
            lease_secs=self._lease_secs,
            start_secs=self._start_secs,
            strict=self._strict,
            gathers=True,
        )
        with tf.device(self._gate_device):
            self._gate = make_gate()
            self.stats_op = sync_gate_ops.sync_gate_stats(self._gate)
        container = self._gate.op.get_attr("container").decode()

        def make_gate_again():
            with tf.compat.v1.container(container):
                return make_gate()

        self._departures = Departures(
            self._gate.graph,
            make_gate_again,
            client.worker,
            gate_device=self._gate_device,
            worker_device=self._worker[0].device,
        )

    def _make_accumulators(self, grads_and_vars) -> None:
        self._accumulators = [
            None
            if gradient is None
            else make_accumulator(
                kind_of(gradient),
                variable,
                shared_name=f"{self._shared_name}/{variable.name}/grad_accum",
                sparse_reduction_type=self._sparse_reduction_type,
            )
            for gradient, variable in grads_and_vars
        ]

    def _make_sync_op(self, grads_and_vars) -> tf.Operation:
        """Builds the chief's part of a step: wait, take, apply, advance."""
        with tf.device(self._gate_device):
            generation = self._generation()
            round_number, num_gradients = sync_gate_ops.sync_gate_wait_quorum(
                self._gate, generation
            )
            quorum = messages.join([round_number, num_gradients])
        averages = []
        for accumulator, (_, variable) in zip(
            self._accumulators, grads_and_vars, strict=True
        ):
            with tf.device(variable.device):
                averages.append(
                    accumulator and self._average(accumulator, variable, quorum)
                )
        variables = [variable for _, variable in grads_and_vars]
        averages = self._kept_for_checkpoints(averages, variables)
        with tf.device(self._global_step.device), tf.compat.v1.name_scope(""):
            with tf.control_dependencies(self._before_update(averages)):
                update_op = self._opt.apply_gradients(
                    list(zip(averages, variables, strict=True)), self._global_step
                )
            with tf.control_dependencies([update_op]):
                step = self._read_step()
            # The step says that all is done: the gate's task hears of nothing else.
            with tf.device(self._gate_device):
                sync_op = sync_gate_ops.sync_gate_advance(
                    self._gate, generation, round_number, step
                ).op
            if self._variable_averages is not None:
                with tf.control_dependencies([sync_op]):
                    sync_op = self._variable_averages.apply(self._variables_to_average)
        return sync_op

    def _average(self, accumulator, variable, quorum):
        """Builds the mean of a round; AdamAsync's updates take dense ones themselves.

        Where a checkpoint may have to keep what is overwritten, that comes between a
        take and its update, and they are two ops as ever. So they are on GPUs, and for
        a subclass, which may look at gradients.
        """
        device = tf.DeviceSpec.from_string(variable.device).device_type
        may_be_on_gpu = device != "CPU" and op_library.has_kernels_for("GPU")
        if (
            type(self._opt) is not AdamAsyncOptimizer
            or not hasattr(variable, "handle")
            or is_written_by_rows(variable)
            or may_be_on_gpu
        ):
            return accumulator.take(quorum)
        dense_round = accumulator.round(quorum)
        if dense_round is None:
            return accumulator.take(quorum)
        return self._opt.gradient_of_round(dense_round)

    def _before_update(self, averages) -> list[Any]:
        """What an update has to wait for, besides the gradient of its variable.

        TensorFlow's Adam lets the moments of all rows decay by an op that takes no
        gradient: it would run before there is one, and once too often where none comes.
        """
        if self._writes_rows_of_gradients_only or not any(
            isinstance(average, tf.IndexedSlices) for average in averages
        ):
            return []
        return flatten([average for average in averages if average is not None])

    @property
    def _writes_rows_of_gradients_only(self) -> bool:
        return type(self._opt) in _WRITING_ROWS_OF_GRADIENTS_ONLY

    def _kept_for_checkpoints(self, averages, variables):
        """Has what an update will overwrite kept for a checkpoint being written.

        Args:
            averages: gradients, or None.
            variables: the variables that they are for.

        Returns:
            The same gradients, which are there once it is kept.
        """
        # Moving averages change all rows.
        by_rows = (
            self._writes_rows_of_gradients_only and self._variable_averages is None
        )
        kept = []
        for average, variable in zip(averages, variables, strict=True):
            if average is None or not is_written_by_rows(variable):
                kept.append(average)
                continue
            is_sparse = isinstance(average, tf.IndexedSlices)
            rows = average.indices if is_sparse and by_rows else None
            with tf.device(variable.device):
                if hasattr(variable, "handle"):
                    first = checkpoint_ops.checkpoint_keep(variable.handle, rows)
                else:
                    first = checkpoint_ops.ref_checkpoint_keep(variable, rows)
                with tf.control_dependencies([first]):
                    kept.append(_identity(average))
        return kept

    def _make_init_ops(self) -> None:
        """Builds what each replica runs before its first step."""
        # A tensor that not every script uses: TensorFlow would complain of that one.
        self.ready_for_local_init_op = tf.identity(
            tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables())
        )
        self.local_step_init_op = self._acquire_op(first=True)
        # What a dead chief's generation left in the accumulators goes before the gate
        # lets anybody push anew. The chief acquires at once after it has opened:
        # replicas that waited for that could fill the round meanwhile, and nobody
        # applies their gradients before this op is done. Hence its name is on the
        # gate's task beforehand, too.
        resets = [
            accumulator.reset() for accumulator in self._accumulators if accumulator
        ]
        with tf.device(self._gate_device):
            worker = [tf.identity(part) for part in self._worker]
        with tf.control_dependencies([*resets, *worker]):
            step = self._read_step()
        with tf.device(self._gate_device):
            opened = sync_gate_ops.sync_gate_open(
                self._gate,
                step,
                quorum=self._replicas_to_aggregate,
                total=self._total_num_replicas,
                lease_secs=self._lease_secs,
                start_secs=self._start_secs,
            )
        with tf.control_dependencies([opened]):
            self.chief_init_op = tf.group(self._acquire_op(first=True, worker=worker))

    def _make_train_op(self, grads_and_vars) -> tf.Operation:
        """Builds a replica's part of a step: admit, push, commit, acquire."""
        present = [
            (gradient, variable, accumulator)
            for (gradient, variable), accumulator in zip(
                grads_and_vars, self._accumulators, strict=True
            )
            if gradient is not None
        ]
        gradients = [gradient for gradient, *_ in present]
        devices = [variable.device for _, variable, _ in present]
        checks = [
            gradient_checks.check_against(gradient, variable)
            for gradient, variable, _ in present
        ]
        along = gradient_transfers.choose_for_message(
            gradients, devices, self._gate_device
        )
        contribution, is_new, fit, arrived = self._tell_gate(checks, gradients, along)
        generation, round_number, device, incarnation = contribution
        with tf.device(self._gate_device):
            # Where no init op has acquired for this client its gradient is of no round,
            # and its first acquire is still to come. It is not told of an end that was
            # another client's.
            admitted = _one_of(
                is_new,
                device,
                lambda device: tf.not_equal(device, device),
                lambda device: sync_gate_ops.sync_gate_admit(
                    self._gate, generation, round_number, device, incarnation, fit
                ),
            )
            # Without a cond around the pushes, gradients are on their way meanwhile.
            # Those of this round, which is none, are dropped.
            pushed_round = tf.where(admitted, round_number, NO_ROUND)
        sent = gradient_transfers.join_small(
            gradients, devices, dict(zip(along, arrived, strict=True))
        )
        pushes = [
            accumulator.push(gradient, pushed_round)
            for gradient, (_, _, accumulator) in zip(sent, present, strict=True)
        ]
        with tf.device(self._gate_device):
            # Groups by task first, and so hears from each task once.
            with tf.control_dependencies([tf.group(pushes)]):
                counted = sync_gate_ops.sync_gate_commit(
                    self._gate, generation, pushed_round, device, incarnation
                )
            with tf.control_dependencies([counted]):
                worker = (tf.identity(device), tf.identity(incarnation))
        return self._acquire_op(first=is_new, worker=worker)

    def _tell_gate(self, checks, gradients, along):
        """Sends the gate's task what it is to know, and parts of gradients with it.

        Once all gradients are there: who is admitted keeps the others waiting, and the
        first to be ready is to be taken, not the first to have begun. It goes as one
        tensor: each that leaves a task costs a call.

        Args:
            checks: the checks of the gradients.
            gradients: all of this replica's.
            along: the positions of those whose small parts go along.

        Returns:
            What the gate's task has then: generation, round, device and incarnation of
            the contribution; whether this client has never acquired; whether its
            gradient is fit; and the parts that went along.
        """
        device, incarnation = self._worker
        with tf.control_dependencies([*checks, *flatten(gradients)]):
            permit = _read(self._local_permit)
            fit = tf.constant(1, tf.int64)
            if self._reject_nonfinite:
                fit = tf.cast(gradient_checks.all_finite(gradients), tf.int64)
        parts = [gradient_transfers.small_part(gradients[i]) for i in along]
        tensors = [permit, device, incarnation, fit, *parts]
        message = messages.pack(tensors)
        with tf.device(self._gate_device):
            permit, device, incarnation, fit, *arrived = messages.unpack(
                message, tensors
            )
            generation, round_number, acquired_by = tf.unstack(permit)
            contribution = (generation, round_number, device, incarnation)
            is_new = tf.not_equal(acquired_by, client.number())
            return contribution, is_new, tf.equal(fit, 1), arrived

    def _make_end_ops(self) -> None:
        with tf.device(self._gate_device):
            # Not another chief's: that may have begun the training anew.
            self._close_op = sync_gate_ops.sync_gate_close(
                self._gate, self._generation()
            )
            self._leave_op = sync_gate_ops.sync_gate_leave(self._gate, *self._worker)
            stop_updater_op = sync_gate_ops.sync_gate_cancel_updater(
                self._gate, self._generation()
            )
            fail_updater_op = sync_gate_ops.sync_gate_cancel_updater(
                self._gate, self._generation(), *self._worker
            )
        self._chief_queue_runner = self._make_queue_runner(
            close_op=self._close_op,
            cancel_op=self._close_op,
            stop_op=stop_updater_op,
            fail_op=fail_updater_op,
        )
        # The hook closes the gate itself, at the end: its runner also ends when a
        # session recovers from the loss of a task, and training goes on.
        self._hooks_queue_runner = self._make_queue_runner(
            close_op=tf.no_op(),
            cancel_op=stop_updater_op,
            stop_op=stop_updater_op,
            fail_op=fail_updater_op,
        )

    def _acquire_op(self, *, first: bool | tf.Tensor, worker=None):
        """Builds the wait for a permit, and its keeping; its value is the step.

        Args:
            first: whether it is the first of a session; where a tensor says that, it is
                on the gate's task, as `worker` is.
            worker: the replica's name and incarnation.

        Returns:
            The local step's tensor.
        """
        device, incarnation = worker or self._worker

        def acquire(device, first):
            answer = sync_gate_ops.sync_gate_acquire(
                self._gate,
                device,
                incarnation,
                first=first,
                quorum=self._replicas_to_aggregate,
                total=self._total_num_replicas,
            )
            return messages.join(answer)

        with tf.device(self._gate_device):
            if isinstance(first, bool):
                answer = acquire(device, first)
            else:
                answer = _one_of(
                    first,
                    device,
                    lambda device: acquire(device, True),
                    lambda device: acquire(device, False),
                )
        permit = tf.concat([answer[:2], tf.constant([client.number()], tf.int64)], 0)
        step = tf.cast(answer[2], self._local_step.dtype.base_dtype)
        with tf.control_dependencies([tf.compat.v1.assign(self._local_permit, permit)]):
            return tf.compat.v1.assign(self._local_step, step)

    def _read_step(self) -> tf.Tensor:
        """Reads the global step once the control dependencies are met.

        On its own task, that is: another would get of a reference variable what it
        was at any time before.
        """
        with tf.device(self._global_step.device):
            return tf.cast(_read(self._global_step), tf.int64)

    def _generation(self) -> tf.Tensor:
        """Reads the generation of this replica's permit; 0 before the first."""
        return _read(self._local_permit)[0]

    def _make_queue_runner(self, close_op, cancel_op, stop_op, fail_op):
        """Makes a runner of the chief's part.

        Args:
            close_op: what it runs when it finds the gate closed.
            cancel_op: what it runs when its coordinator stops; has to end the wait.
            stop_op: the same when an error has stopped it.
            fail_op: what it runs when an update failed; has to end its client's wait.

        Returns:
            The `tf.compat.v1.train.QueueRunner`.
        """
        return ChiefQueueRunner(
            permit=_read(self._local_permit),
            open_op=self.chief_init_op,
            stop_op=stop_op,
            fail_op=fail_op,
            departures=self._departures,
            queue=self._gate.op,
            enqueue_ops=[self._sync_op],
            close_op=close_op,
            cancel_op=cancel_op,
        )


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


def _identity(gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.identity(gradient.values), gradient.indices, gradient.dense_shape
        )
    return tf.identity(gradient)


def _one_of(predicate, device, if_true, if_false) -> tf.Tensor:
    """Runs one of two ops, on the task of the gate where all of it is.

    By ops of TensorFlow's, not by `tf.cond`, which may call functions elsewhere.

    Args:
        predicate: bool, a tensor.
        device: what the op is about, a tensor.
        if_true: makes the one of it.
        if_false: makes the other.

    Returns:
        Its result.
    """
    for_false, for_true = tf.raw_ops.Switch(data=device, pred=predicate)
    branches = [if_true(for_true), if_false(for_false)]
    return tf.raw_ops.Merge(inputs=branches).output


def _read(variable) -> tf.Tensor:
    """The variable's value once the control dependencies are met, ref or resource."""
    return variable.read_value()


def _shared_name(name: str, global_step, grads_and_vars) -> str:
    """Names the gate, alike in the graphs of all replicas.

    It tells optimizers apart by their name, global step and variables, and, where
    all of these are the same, by the order in which the graph got them.
    """
    variables = "\n".join(variable.name for _, variable in grads_and_vars)
    digest = hashlib.sha256(variables.encode()).hexdigest()[:16]
    return tf.compat.v1.get_default_graph().unique_name(
        f"sync_gate/{name}/{global_step.op.name}/{digest}"
    )
